//! The keyboard while no line is edited: keys wait for the next prompt, and are not echoed into an answer.
//!
//! In the usual mode of a terminal the system echoes what is typed and drops what does not fit on a line. [`Keyboard::hold`] turns both
//! off until it is dropped; the editor of lines then finds every key that was pressed. Ctrl-C still sends its signal.

/// Holds keys until it is dropped.
pub struct Keyboard(());

impl Keyboard {
    /// Holds keys from now on; nothing where stdin is no terminal.
    pub fn hold() -> Self {
        #[cfg(unix)]
        unix::hold();
        Self(())
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back as it was found; nothing if no keys are held. Safe to call from a signal's handler.
pub fn restore() {
    #[cfg(unix)]
    unix::restore();
}

#[cfg(unix)]
mod unix {
    use std::mem::MaybeUninit;
    use std::sync::OnceLock;

    /// The mode that was found.
    static FOUND: OnceLock<libc::termios> = OnceLock::new();

    pub fn hold() {
        let mut mode = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: the pointer is to memory of that type; a failure leaves it alone and is looked at.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, mode.as_mut_ptr()) } != 0 {
            return;
        }
        // SAFETY: the call has filled it in.
        let mut mode = unsafe { mode.assume_init() };
        FOUND.get_or_init(|| mode);
        mode.c_lflag &= !(libc::ICANON | libc::ECHO);
        // Ctrl-C stops an answer; what was typed before it still waits.
        mode.c_lflag |= libc::NOFLSH;
        mode.c_cc[libc::VMIN] = 1;
        mode.c_cc[libc::VTIME] = 0;
        set(&mode);
    }

    pub fn restore() {
        FOUND.get().into_iter().for_each(set);
    }

    fn set(mode: &libc::termios) {
        // SAFETY: the mode is one that the terminal gave, with flags of its own. A terminal that is gone needs none.
        let _ = unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, mode) };
    }
}
