//! Running programs: one-shot commands with readable errors, background
//! children that die with their owner, and the reaper that cleans up after us.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::namespace::Namespace;

/// Runs a command to its end; an error carries its standard error.
pub fn output(command: &mut Command) -> Result<Output> {
    let result = command.stdin(Stdio::null()).output();
    let output = result.with_context(|| format!("could not start {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(output)
}

/// Runs a command to its end and returns its standard output as text.
pub fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?.stdout).into_owned())
}

/// Runs a command, feeding `input` to its standard input.
pub(crate) fn feed(command: &mut Command, input: &str) -> Result<()> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start {command:?}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(input.as_bytes())
            .context("writing to a child's standard input")?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}): {}\ninput was:\n{input}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// A program running in the background, with its output in files.
///
/// Killed when dropped, unless [`Background::detach`] was called.
#[derive(Debug)]
pub struct Background {
    /// `None` once reaped or detached.
    child: Option<Child>,
    pid: u32,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Background {
    /// Starts `command`; its output goes to `<dir>/<name>.out` and `<name>.err`.
    pub fn spawn(mut command: Command, dir: &Path, name: &str) -> Result<Self> {
        let stdout = dir.join(format!("{name}.out"));
        let stderr = dir.join(format!("{name}.err"));
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).with_context(|| format!("creating {stdout:?}"))?)
            .stderr(File::create(&stderr).with_context(|| format!("creating {stderr:?}"))?)
            .spawn()
            .with_context(|| format!("could not start {command:?}"))?;
        Ok(Self {
            pid: child.id(),
            child: Some(child),
            stdout,
            stderr,
        })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        read_lossy(&self.stdout)
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        read_lossy(&self.stderr)
    }

    /// What it has written to standard error behind the first `start` bytes.
    pub fn stderr_from(&self, start: u64) -> Result<String> {
        let mut file = File::open(&self.stderr)?;
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = vec![];
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Bytes that it has written to standard error.
    pub fn stderr_len(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.stderr)?.len())
    }

    /// Its exit status if it has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }

    /// Waits until it ends, at most `limit`; `None` if it is still running then.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            if self.child.is_none() || Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until something takes connections there in its namespace.
    ///
    /// # Errors
    /// It has ended, or five seconds have passed; with what it has said.
    pub fn wait_for_listener(&mut self, namespace: &Namespace, at: SocketAddr) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !namespace.run(|| Ok(TcpStream::connect(at).is_ok()))? {
            if self.try_wait()?.is_some() || Instant::now() > deadline {
                let said = self.stderr() + &self.stdout();
                bail!("nothing listens at {at}: {}", said.trim());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.child.is_some() {
            kill_process(pid_of(self.pid)?, signal)
                .with_context(|| format!("sending {signal:?} to process {}", self.pid))?;
        }
        Ok(())
    }

    /// Leaves the process running when this value is dropped.
    pub fn detach(&mut self) {
        self.child = None;
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Says how a process ended, in the words of a shell user.
pub fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (_, Some(signal)) => format!("killed by signal {signal}"),
        _ => "ended".to_owned(),
    }
}

/// A shell that outlives us by a moment and removes what we leave behind.
///
/// It waits for the end of its standard input. When this process dies, of
/// SIGINT, SIGKILL, a panic or anything else, the kernel closes the pipe.
#[derive(Debug)]
pub(crate) struct Reaper {
    child: Child,
}

impl Reaper {
    /// Arms the reaper for all namespaces called `<prefix>-*` and for `dir`.
    pub(crate) fn arm(prefix: &str, dir: &Path) -> Result<Self> {
        let child = Command::new("/bin/sh")
            .arg("-c")
            .arg(REAPER_SCRIPT)
            .arg("flexcp-lab-reaper")
            .arg(prefix)
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own, so that Ctrl-C at a terminal does not reach it.
            .process_group(0)
            .spawn()
            .context("could not start the lab's reaper (/bin/sh)")?;
        Ok(Self { child })
    }

    /// Sends it away: everything is cleaned up, or is to stay.
    pub(crate) fn disarm(&mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(b"done\n");
        }
        let _ = self.child.wait();
    }
}

pub(crate) fn pid_of(pid: u32) -> Result<Pid> {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .context("not a process id")
}

fn read_lossy(path: &Path) -> String {
    std::fs::read(path)
        .map(|b| String::from_utf8_lossy(&b).into_owned())
        .unwrap_or_default()
}

const REAPER_SCRIPT: &str = r#"
trap '' HUP INT TERM
read -r word
[ "$word" = done ] && exit 0
ip netns list | while read -r name rest; do
    case "$name" in
    "$1"-*)
        # A lab whose proxy is this host has only given it a name.
        [ "/run/netns/$name" -ef /proc/self/ns/net ] || ip netns pids "$name" | xargs -r kill -9
        ip netns del "$name"
        ;;
    esac
done
rm -rf "$2"
"#;
