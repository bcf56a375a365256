//! Packet captures on both sides of the proxy.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;

use crate::namespace::Namespace;
use crate::process::Background;
use crate::topology::Lab;

/// Running captures, one file per interface of the proxy.
#[derive(Debug)]
pub struct Capture {
    running: Vec<(Background, PathBuf)>,
}

impl Lab {
    /// Captures on every interface of the proxy, into `<name>-<interface>.pcap`.
    ///
    /// Only the first 256 bytes of each packet are kept.
    pub fn capture(&self, name: &str) -> Result<Capture> {
        let access = (1..=self.links()).map(|link| format!("a{link}"));
        let servers = (1..=self.servers().len()).map(|number| format!("srv{number}"));
        let devices: Vec<_> = access.chain(servers).collect();
        self.capture_at(self.proxy(), name, &devices)
    }

    /// The same on these interfaces of another of its namespaces.
    pub fn capture_at(
        &self,
        namespace: &Namespace,
        name: &str,
        devices: &[String],
    ) -> Result<Capture> {
        let mut running = vec![];
        for device in devices {
            let file = self.dir().join(format!("{name}-{device}.pcap"));
            let mut command = namespace.command("tcpdump");
            command.args([
                "-q",
                "-n",
                "-s",
                "256",
                "--immediate-mode",
                // Files are merged by time, and a microsecond has room for several packets.
                "--time-stamp-precision=nano",
                "-B",
                "16384",
                "-Z",
                "root",
                "-i",
                device,
                "-w",
            ]);
            command.arg(&file);
            let tcpdump = Background::spawn(command, self.dir(), &format!("{name}-{device}"))?;
            running.push((tcpdump, file));
        }
        let capture = Capture { running };
        capture.wait_until_listening()?;
        Ok(capture)
    }
}

impl Capture {
    /// Ends the captures; the files, complete.
    pub fn stop(mut self) -> Result<Vec<PathBuf>> {
        self.end()?;
        Ok(self.files())
    }

    /// Ends the captures; the files, in which every packet is.
    ///
    /// # Errors
    ///
    /// tcpdump was too slow, and the kernel dropped packets.
    pub fn stop_whole(mut self) -> Result<Vec<PathBuf>> {
        self.end()?;
        for (tcpdump, _) in &self.running {
            let said = tcpdump.stderr();
            ensure!(
                said.contains("\n0 packets dropped by kernel"),
                "a capture has holes: {said}"
            );
        }
        Ok(self.files())
    }

    fn end(&mut self) -> Result<()> {
        // What was sent a moment ago may still be on its way through the socket.
        thread::sleep(Duration::from_millis(100));
        for (tcpdump, _) in &mut self.running {
            tcpdump.signal(Signal::INT)?;
            ensure!(
                tcpdump.wait(Duration::from_secs(2))?.is_some(),
                "tcpdump does not stop"
            );
        }
        Ok(())
    }

    fn files(self) -> Vec<PathBuf> {
        self.running.into_iter().map(|(_, file)| file).collect()
    }

    fn wait_until_listening(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(3);
        for (tcpdump, _) in &self.running {
            while !tcpdump.stderr().contains("listening on") {
                ensure!(Instant::now() < deadline, "tcpdump: {}", tcpdump.stderr());
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}
