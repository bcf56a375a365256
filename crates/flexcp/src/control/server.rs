//! The daemon's end of the control socket: who is let in, for how long, and how many at a time.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use flexcp_io::Reasons;
use flexcp_translator::{AccessId, ServiceId};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::accesses::Floors;
use super::bind::{self, BindError, SocketFile};
use super::fault::Refused;
use super::gate::{self, Token};
use super::patience::{Dawdling, Patience, Patient};
use super::routes::{self, Daemon};
use crate::location::LocationHandle;
use crate::rulebook::Keeper;
use crate::split::RelayHandle;
use crate::watch::StatusHandle;
use crate::worker::WorkerHandle;

/// The bound control socket, and the thread's runtime.
#[derive(Debug)]
pub struct Control {
    unix: UnixListener,
    /// With the token that whoever comes there has to have.
    tcp: Option<(TcpListener, Token)>,
    runtime: Runtime,
    /// Comes when the socket's file goes.
    end: oneshot::Receiver<()>,
}

/// What a service is called in answers.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its id.
    pub id: ServiceId,
    /// Its name.
    pub name: String,
    /// Its mode's name.
    pub mode: &'static str,
}

/// What things are called that have numbers inside.
#[derive(Clone, Default, Debug)]
pub struct Names {
    /// The services, those that are drained too.
    pub services: Vec<Named>,
    /// The accesses, in their order.
    pub accesses: Vec<String>,
}

impl Names {
    /// That of an access, if there is one.
    pub(super) fn access(&self, id: Option<AccessId>) -> Option<String> {
        self.accesses.get(usize::from(id?.0)).cloned()
    }
}

/// Who knows the answers.
pub struct Asked {
    /// About packets and connections.
    pub workers: Vec<WorkerHandle>,
    /// What the offload's programs have counted; `None` without them.
    pub offload: Option<Reasons>,
    /// About split connections.
    pub(crate) split: RelayHandle,
    /// About the choice of servers.
    pub(crate) location: LocationHandle,
    /// About the kernel and the configuration.
    pub watch: StatusHandle,
    /// Where what was set is kept.
    pub keeper: Arc<Keeper>,
    /// What was told of accesses.
    pub floors: Floors,
}

impl Control {
    /// Binds the socket `path`, which the daemon's own user alone may open, and the address of TCP with the file of its token,
    /// if there is to be one. The socket's file goes away with the second value, and [serving](Self::serve) ends.
    ///
    /// # Errors
    /// When another FlexCP answers there, the token is no good, or the kernel refuses.
    pub fn bind(
        path: &Path,
        listen: Option<(SocketAddr, &Path)>,
    ) -> Result<(Self, SocketFile), BindError> {
        let tcp = listen.map(|(listen, token)| {
            let token = Token::read(token)?;
            Ok::<_, BindError>((bind::tcp(listen)?, token))
        });
        let tcp = tcp.transpose()?;
        let unix = bind::unix(path)?;
        let (alive, end) = oneshot::channel();
        let file = SocketFile::new(path.into(), alive);
        let runtime = runtime().map_err(BindError::Runtime)?;
        let within = runtime.enter();
        let unix = UnixListener::from_std(unix).map_err(BindError::Runtime)?;
        let tcp = tcp.map(|(listener, token)| Ok((TcpListener::from_std(listener)?, token)));
        let tcp = tcp.transpose().map_err(BindError::Runtime)?;
        drop(within);
        let control = Self {
            unix,
            tcp,
            runtime,
            end,
        };
        Ok((control, file))
    }

    /// Where TCP is listened on.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        let listener = self.tcp.as_ref().map(|(listener, _)| listener.local_addr());
        listener.and_then(Result::ok)
    }

    /// Answers requests until the socket's file goes, of a bounded number of clients at a time. Nothing that a client does or
    /// omits delays another, and no error of `accept` is the end.
    pub fn serve(self, asked: Arc<Asked>) {
        let Self {
            unix,
            tcp,
            runtime,
            end,
        } = self;
        let keeps = Arc::clone(&asked);
        let router = routes::router(Arc::new(Daemon::new(asked)));
        runtime.block_on(async {
            // Not before: a thread that is made while the process may load programs would keep that right.
            let _ = tokio::task::spawn_blocking(|| {}).await;
            let local = admit(
                async || unix.accept().await.map(|(client, _)| client),
                CLIENTS,
                router.clone(),
            );
            let remote = async {
                let Some((listener, token)) = tcp else {
                    return std::future::pending().await;
                };
                let gate = axum::middleware::from_fn_with_state(token, gate::pass);
                let router = router.clone().layer(gate);
                admit(async || tcp_client(&listener).await, CLIENTS_OF_TCP, router).await;
            };
            tokio::select! {
                () = local => {}
                () = remote => {}
                () = keep(keeps) => {}
                _ = end => {}
            }
        });
        // Whoever waits for a worker's answer is not waited for.
        runtime.shutdown_background();
    }
}

/// Saves what was set, once a second at most.
async fn keep(asked: Arc<Asked>) {
    loop {
        asked.keeper.until_due().await;
        let saves = Arc::clone(&asked);
        let saved = tokio::task::spawn_blocking(move || {
            let set = saves.watch.rules_set().map_err(io::Error::other)?;
            saves.keeper.save(&set, "new")
        });
        if let Ok(Err(error)) = saved.await {
            warn!("what the API has set is not kept: {error}");
        }
        tokio::time::sleep(SAVES).await;
    }
}

/// One thread, that of the caller; questions to workers wait on others, a bounded number of them.
fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(QUESTIONS)
        .thread_name("control")
        .thread_stack_size(STACK)
        // While there is one, the lack of another is only a delay.
        .thread_keep_alive(FOREVER)
        .build()
}

async fn tcp_client(listener: &TcpListener) -> io::Result<TcpStream> {
    let (client, _) = listener.accept().await?;
    // A client that is gone without a word does not keep its place.
    let _ = rustix::net::sockopt::set_socket_keepalive(&client, true);
    let _ = rustix::net::sockopt::set_tcp_keepidle(&client, KEEPALIVE);
    let _ = rustix::net::sockopt::set_tcp_keepintvl(&client, KEEPALIVE);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&client, USER_TIMEOUT);
    let _ = client.set_nodelay(true);
    Ok(client)
}

/// Serves each client that comes, so many at a time, and tells others that there are too many.
async fn admit<S>(mut next: impl AsyncFnMut() -> io::Result<S>, most: usize, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let places = Arc::new(Semaphore::new(most));
    let mut said: Option<Instant> = None;
    loop {
        match next().await {
            Ok(client) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    let served = serve(client, router.clone());
                    tokio::spawn(async move {
                        if let Err(error) = served.await {
                            debug!("control: {error}");
                        }
                        drop(place);
                    });
                }
                Err(_) => refuse(client, most).await,
            },
            // A client waits in the backlog until there is, say, a file descriptor for it.
            Err(error) => {
                if said.is_none_or(|said| said.elapsed() > SILENCE) {
                    warn!("control: can't take a request now: {error}; tries again");
                    said = Some(Instant::now());
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Answers one request after the other.
fn serve<S>(client: S, router: Router) -> impl Future<Output = hyper::Result<()>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let patience = Arc::new(Patience::default());
    let client = Patient::new(client, Arc::clone(&patience));
    let answer = service_fn(move |mut request: Request<Incoming>| {
        patience.set(Dawdling::Answer);
        request.extensions_mut().insert(Arc::clone(&patience));
        TowerToHyperService::new(router.clone()).call(request.map(Body::new))
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(client), answer)
}

/// Tells a client that it is not served, without waiting for it.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(mut client: S, most: usize) {
    let message = format!("{most} clients are being served already; ask again later");
    let message = Refused::full(&message).message();
    // Had its request to be thrown away unread, it would be told of a broken connection instead.
    at_once(client.read(&mut [0; 4096])).await;
    at_once(client.write_all(&message)).await;
    at_once(client.shutdown()).await;
}

/// Does what can be done without waiting.
async fn at_once(done: impl Future) {
    let mut done = pin!(done);
    std::future::poll_fn(|cx| {
        let _ = done.as_mut().poll(cx);
        std::task::Poll::Ready(())
    })
    .await;
}

/// Clients of the Unix socket that are served at a time.
const CLIENTS: usize = 64;

/// The same of TCP, beside those: strangers may come there, and hold none of the others' places.
const CLIENTS_OF_TCP: usize = 16;

/// How long a client may take to ask.
const PATIENCE: Duration = Duration::from_secs(2);

/// Questions to workers and the watcher at a time; more of them than listings, so that a short one waits for none.
const QUESTIONS: usize = 24;

/// Of a thread that waits for an answer, in bytes.
const STACK: usize = 256 << 10;

/// Longer than anything runs, in what clocks can count.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What is read ahead or waits to be written, of each client, in bytes. No request's head is longer.
const BUFFER: usize = 16 << 10;

/// Between two times that something is saved.
const SAVES: Duration = Duration::from_secs(1);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Between two lines of the log about the same.
const SILENCE: Duration = Duration::from_secs(60);

/// A silent client of TCP is asked whether it is there, so often.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// After so many milliseconds without an ACK it is not.
const USER_TIMEOUT: u32 = 30_000;
