//! A service manager for one daemon, as far as FlexCP speaks to one: it keeps the descriptors that it is given, and passes
//! them on to the next run (`sd_notify`(3), `sd_listen_fds`(3)).

use std::fmt::Write as _;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The manager.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    /// Names and descriptors.
    store: Vec<(String, OwnedFd)>,
}

impl Manager {
    /// One that listens on a socket in this directory.
    ///
    /// # Errors
    ///
    /// The socket can't be bound.
    pub fn new(directory: &Path) -> Result<Self> {
        let path = directory.join("notify");
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            path,
            store: vec![],
        })
    }

    /// Makes the command one of a service: it is told where the manager listens, and gets what is in the store.
    ///
    /// # Errors
    ///
    /// A descriptor can't be passed on.
    pub fn of_service(&mut self, command: &Command) -> Result<Command> {
        self.listen()?;
        // The shell puts each descriptor where systemd would; the process number stays when it gives way to the program.
        let mut script = String::new();
        let mut names = vec![];
        for (place, (name, fd)) in self.store.iter().enumerate() {
            fcntl_setfd(fd, FdFlags::empty())?;
            write!(script, "exec {}<&{}; ", FIRST + place, fd.as_raw_fd())?;
            names.push(name.as_str());
        }
        if !names.is_empty() {
            let (count, names) = (names.len(), names.join(":"));
            write!(
                script,
                "export LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES={names}; "
            )?;
        }
        script += "exec \"$@\"";
        // The namespace is entered first: what enters it is the program's parent no longer, but the same process.
        let mut service = Command::new("bash");
        service
            .args(["-c", &script, "service"])
            .arg(command.get_program())
            .args(command.get_args())
            .env("NOTIFY_SOCKET", &self.path);
        Ok(service)
    }

    /// To be called when the service has been started: what is in the store is for no other program that this process starts,
    /// which would hold it after its end.
    ///
    /// # Errors
    ///
    /// A descriptor can't be set so.
    pub fn started(&self) -> Result<()> {
        for (_, fd) in &self.store {
            fcntl_setfd(fd, FdFlags::CLOEXEC)?;
        }
        Ok(())
    }

    /// Takes what the daemon has said since. The states that it has told, a line each.
    ///
    /// # Errors
    ///
    /// The socket can't be read.
    pub fn listen(&mut self) -> Result<Vec<String>> {
        let mut told = vec![];
        while let Some((text, fds)) = self.receive()? {
            let named = |key: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(key));
                line.map(str::to_owned)
            };
            let name = named("FDNAME=").unwrap_or_else(|| "stored".into());
            if text.contains("FDSTOREREMOVE=1") {
                self.store.retain(|(known, _)| *known != name);
            } else if text.contains("FDSTORE=1") {
                self.store
                    .extend(fds.into_iter().map(|fd| (name.clone(), fd)));
            }
            told.extend(text.lines().map(str::to_owned));
        }
        Ok(told)
    }

    /// Descriptors in the store.
    ///
    /// # Errors
    ///
    /// The socket can't be read.
    pub fn stored(&mut self) -> Result<usize> {
        self.listen()?;
        Ok(self.store.len())
    }

    fn receive(&self) -> Result<Option<(String, Vec<OwnedFd>)>> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        let len = match got {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let rights = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds = rights.flatten().collect();
        let text = String::from_utf8_lossy(bytes.get(..len).unwrap_or_default());
        Ok(Some((text.into_owned(), fds)))
    }
}

/// `SD_LISTEN_FDS_START`
const FIRST: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn descriptors_are_kept_and_passed_on_where_the_next_run_looks_for_them() {
        let directory = std::env::temp_dir().join(format!("flexcp-manager-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("writable");
        let mut manager = Manager::new(&directory).expect("a socket");
        let (ours, mut theirs) = std::io::pipe().expect("a pipe");
        theirs.write_all(b"kept").expect("room");
        drop(theirs);
        manager.store.push(("queue".into(), ours.into()));
        let mut command = Command::new("bash");
        command.args([
            "-c",
            "cat <&3; echo $LISTEN_FDS $LISTEN_FDNAMES $((LISTEN_PID - $$)) $NOTIFY_SOCKET",
        ]);
        let mut service = manager.of_service(&command).expect("a command");
        let said = service.output().expect("bash").stdout;
        manager.started().expect("set");
        let queue = &manager.store[0].1;
        let flags = rustix::io::fcntl_getfd(queue).expect("open");
        assert_eq!(flags, FdFlags::CLOEXEC);
        let expected = format!("kept1 queue 0 {}\n", manager.path.display());
        assert_eq!(String::from_utf8_lossy(&said), expected);

        let daemon = UnixDatagram::unbound().expect("a socket");
        let say = |text: &str| {
            daemon
                .send_to(text.as_bytes(), &manager.path)
                .expect("heard")
        };
        say("READY=1\nSTATUS=fine");
        say("FDSTOREREMOVE=1\nFDNAME=queue");
        assert_eq!(manager.listen().expect("read").len(), 4);
        assert_eq!(manager.stored().expect("read"), 0);
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
