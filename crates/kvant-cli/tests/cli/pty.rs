//! A program on a terminal of its own: what a person at a keyboard sees and types.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";
pub const UP: &str = "\x1b[A";

/// Nothing here takes long; beyond this the test says what it saw.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A child on a pseudo-terminal.
pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// All that was shown.
    shown: String,
    /// How much of it was expected so far.
    read: usize,
}

impl Terminal {
    /// Starts `command` with a new terminal for its input, output and errors.
    pub fn start(mut command: Command) -> Self {
        let (ours, theirs) = open();
        let end = || theirs.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").env("COLUMNS", "120");
        // SAFETY: both calls are async-signal-safe. The terminal becomes the child's own, so that Ctrl-C reaches it.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY as _, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        // The terminal closes with the last holder of that end, which should be the child.
        drop((command, theirs));
        let keyboard = File::from(ours);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Linux reports an error, others the end, when the child is gone.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard, screen, shown: String::new(), read: 0 }
    }

    /// The child's process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Types.
    pub fn send(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is shown, after what was expected before.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.shown[self.read..].find(text) {
                self.read += at + text.len();
                return;
            }
            assert!(self.receive(deadline), "{text:?} was not shown; the screen: {:?}", self.shown);
        }
    }

    /// Waits until something is shown, after what was expected before, and returns it.
    #[track_caller]
    pub fn more(&mut self) -> String {
        let deadline = Instant::now() + TIMEOUT;
        while self.read == self.shown.len() {
            assert!(self.receive(deadline), "nothing more was shown; the screen: {:?}", self.shown);
        }
        let more = self.shown[self.read..].to_owned();
        self.read = self.shown.len();
        more
    }

    /// Takes in what is shown next; false if that is nothing.
    fn receive(&mut self, deadline: Instant) -> bool {
        match self.screen.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(bytes) => {
                self.shown.push_str(&String::from_utf8_lossy(&bytes));
                true
            }
            Err(_) => false,
        }
    }

    /// Waits for the end of the program; returns how it ended and all that was shown.
    #[track_caller]
    pub fn end(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + TIMEOUT;
        while self.receive(deadline) {}
        assert!(Instant::now() < deadline, "the program goes on; the screen: {:?}", self.shown);
        (self.child.wait().unwrap(), std::mem::take(&mut self.shown))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A test that fails leaves no program behind; one that has ended cannot be killed, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends of a new terminal of a usual size.
fn open() -> (OwnedFd, OwnedFd) {
    let (mut ours, mut theirs) = (0, 0);
    let mut size = libc::winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the pointers are to live variables, or null where the call allows it.
    let status = unsafe {
        libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null_mut(), &raw mut size)
    };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    // Other tests start programs at the same time, which must not hold on to this terminal.
    for end in [ours, theirs] {
        // SAFETY: the descriptor was just opened and is ours.
        unsafe { libc::fcntl(end, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: both descriptors were just opened and are owned by nobody else.
    unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}
