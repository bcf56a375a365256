//! A program that writes each packet of a TUN device back as it came: what the device itself costs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Result;
use flexcp_io::{PacketBuffer, SendBatch, Tun, Waker, wait};
use flexcp_lab::Lab;

/// All that passes the proxy's namespace goes through it until it is dropped. It reads and writes as a worker of
/// FlexCP does.
#[derive(Debug)]
pub(crate) struct Echo {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    waker: Waker,
    stop: AtomicBool,
    passed: AtomicU64,
}

impl Echo {
    pub(crate) fn start(lab: &Lab) -> Result<Self> {
        let proxy = lab.proxy();
        let tun = proxy.run(|| Ok(Tun::open(DEVICE)?))?;
        proxy.ip(&format!("link set {DEVICE} up mtu 65535"))?;
        proxy.ip(&format!("route add default dev {DEVICE} table {TABLE}"))?;
        for device in ["a1", "a2", "srv1"] {
            proxy.ip(&format!("rule add iif {device} lookup {TABLE}"))?;
        }
        let shared = Arc::new(Shared {
            waker: Waker::new()?,
            stop: AtomicBool::new(false),
            passed: AtomicU64::new(0),
        });
        let seen = Arc::clone(&shared);
        let run = move || {
            if let Err(error) = echo(&tun, &seen) {
                eprintln!("bench: {DEVICE}: {error}");
            }
        };
        let thread = Some(thread::Builder::new().name("echo".into()).spawn(run)?);
        Ok(Self { shared, thread })
    }

    /// Packets so far.
    pub(crate) fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.waker.wake();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn echo(tun: &Tun, shared: &Shared) -> io::Result<()> {
    let (mut buffer, mut batch) = (PacketBuffer::new(), SendBatch::new());
    while !shared.stop.load(Ordering::Relaxed) {
        wait(tun, &shared.waker, None)?;
        for _ in 0..ROUND {
            let Some(mut frame) = tun.receive(&mut buffer)? else {
                break;
            };
            batch.send(tun, &mut frame);
            shared.passed.fetch_add(1, Ordering::Relaxed);
        }
        batch.flush(tun);
    }
    Ok(())
}

const DEVICE: &str = "echo0";
const TABLE: u32 = 100;

/// Packets between two looks at what else there is to do, as of a worker.
const ROUND: usize = 64;
