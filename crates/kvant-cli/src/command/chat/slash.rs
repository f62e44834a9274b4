//! Commands within a conversation: lines that begin with a slash.

/// What `/help` prints.
pub const HELP: &str = "\
/clear         forget the conversation
/system TEXT   set the instructions and start over; without TEXT, none
/retry         answer the last message again
/save FILE     write the conversation as JSON
/exit          leave (also Ctrl-D, and Ctrl-C twice)
/help          this list
Ctrl-C stops an answer. A line that ends with \\ goes on with the next one. Begin with // to say something that
begins with a slash.";

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub enum Slash {
    Help,
    Clear,
    System(String),
    Retry,
    Save(String),
    Exit,
}

impl Slash {
    /// Reads a line: `None` if it is no command, an error for one that is not understood.
    pub fn parse(line: &str) -> Option<Result<Self, String>> {
        let rest = line.trim().strip_prefix('/').filter(|rest| !rest.starts_with('/'))?;
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = argument.trim();
        Some(match (name, argument) {
            ("help" | "?", _) => Ok(Self::Help),
            ("clear" | "new", _) => Ok(Self::Clear),
            ("system", text) => Ok(Self::System(text.to_owned())),
            ("retry", _) => Ok(Self::Retry),
            ("save", "") => Err("/save needs the name of a file".to_owned()),
            ("save", path) => Ok(Self::Save(path.to_owned())),
            ("exit" | "quit" | "bye", _) => Ok(Self::Exit),
            (other, _) => Err(format!("there is no command /{other}; /help lists them")),
        })
    }
}

/// The text itself, of a line that is no command.
pub fn unescaped(line: String) -> String {
    match line.strip_prefix("//") {
        Some(rest) => format!("/{rest}"),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::{Slash, unescaped};

    #[test]
    fn commands_are_told_from_text() {
        assert_eq!(Slash::parse("what is 1/2?"), None);
        assert_eq!(Slash::parse("//path"), None);
        assert_eq!(unescaped("//path".into()), "/path");
        assert_eq!(Slash::parse(" /exit "), Some(Ok(Slash::Exit)));
        assert_eq!(Slash::parse("/system  be kind "), Some(Ok(Slash::System("be kind".into()))));
        assert!(Slash::parse("/save").unwrap().is_err());
        assert!(Slash::parse("/nonsense x").unwrap().unwrap_err().contains("/nonsense"));
    }
}
