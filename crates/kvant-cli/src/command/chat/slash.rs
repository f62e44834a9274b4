//! Commands within a conversation: lines that begin with a slash.

use crate::options::{Think, Tokens};

/// What `/help` prints.
pub const HELP: &str = "\
/clear              start a new conversation; a --session file keeps the old one
                    under another name
/undo               remove the last message and its answer
/retry              answer the last message again
/system TEXT        set the system prompt; `none` removes it, no TEXT shows it
/set NAME VALUE     change a setting, such as temperature 0.5 or max_tokens 200;
                    no NAME shows them all
/think HOW          reasoning: on, off, hide, low, medium or high
/save FILE          write the conversation as JSON
/load FILE          continue a conversation written by /save
/grow TOKENS        lengthen the context (no TOKENS: double it)
/window TOKENS      stream: the model sees the first few and the last TOKENS
/drop N             drop the N oldest messages (no N: as many as needed)
/exit               leave (also Ctrl-D, and Ctrl-C twice on an empty line)
/help               this list
Ctrl-C stops an answer and clears a line. \\ at the end of a line continues the message
on the next line; \"\"\" begins and ends several lines. To send a message that begins
with a slash, type // first.";

/// All commands, for completion.
pub const NAMES: [&str; 13] = [
    "/clear", "/drop", "/exit", "/grow", "/help", "/load", "/retry", "/save", "/set", "/system", "/think",
    "/undo", "/window",
];

/// A command.
#[derive(Debug, PartialEq)]
pub enum Slash {
    Help,
    Clear,
    /// New instructions; shows them without any.
    System(Option<String>),
    Retry,
    Undo,
    Save(String),
    Load(String),
    /// A setting and its value; shows all without one.
    Set(Option<(String, String)>),
    Think(Think),
    Grow(Option<usize>),
    Window(Option<usize>),
    Drop(Option<usize>),
    Exit,
}

impl Slash {
    /// Reads a line: `None` if it is no command, an error for one that is not understood.
    pub fn parse(line: &str) -> Option<Result<Self, String>> {
        let rest = line.trim().strip_prefix('/').filter(|rest| !rest.starts_with('/'))?;
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = argument.trim();
        let given = Some(argument).filter(|argument| !argument.is_empty());
        let tokens = |make: fn(Option<usize>) -> Self| {
            given.map(str::parse::<Tokens>).transpose().map(|tokens| make(tokens.map(|tokens| tokens.0)))
        };
        Some(match (name, given) {
            ("help" | "?", _) => Ok(Self::Help),
            ("clear" | "new", _) => Ok(Self::Clear),
            ("system", given) => Ok(Self::System(given.map(str::to_owned))),
            ("retry", _) => Ok(Self::Retry),
            ("undo", _) => Ok(Self::Undo),
            ("save" | "load", None) => Err(format!("/{name} needs the name of a file")),
            ("save", Some(path)) => Ok(Self::Save(path.to_owned())),
            ("load", Some(path)) => Ok(Self::Load(path.to_owned())),
            ("set", None) => Ok(Self::Set(None)),
            // Ollama has a word in between.
            ("set", Some(setting)) => match setting.trim_start_matches("parameter ").split_once([' ', '=']) {
                Some((name, value)) => Ok(Self::Set(Some((name.trim().to_owned(), value.trim().to_owned())))),
                None => Err(format!("/set {setting} needs a value")),
            },
            ("think", how) => how.unwrap_or("on").parse().map(Self::Think),
            ("nothink", _) => Ok(Self::Think(Think::Off)),
            ("grow", _) => tokens(Self::Grow),
            ("window", _) => tokens(Self::Window),
            ("drop", count) => match count.map(str::parse).transpose() {
                Ok(count) => Ok(Self::Drop(count)),
                Err(_) => Err("/drop takes a number of messages".to_owned()),
            },
            ("exit" | "quit" | "bye", _) => Ok(Self::Exit),
            (other, _) => Err(format!("unknown command /{other}; /help lists the commands")),
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
    use super::{HELP, NAMES, Slash, unescaped};
    use crate::options::Think;

    #[test]
    fn commands_are_told_from_text() {
        assert_eq!(Slash::parse("what is 1/2?"), None);
        assert_eq!(Slash::parse("//path"), None);
        assert_eq!(unescaped("//path".into()), "/path");
        assert_eq!(Slash::parse(" /exit "), Some(Ok(Slash::Exit)));
        assert_eq!(Slash::parse("/system  be kind "), Some(Ok(Slash::System(Some("be kind".into())))));
        assert_eq!(Slash::parse("/system"), Some(Ok(Slash::System(None))));
        assert_eq!(
            Slash::parse("/set top_p=0.5"),
            Some(Ok(Slash::Set(Some(("top_p".into(), "0.5".into())))))
        );
        assert_eq!(Slash::parse("/think off"), Some(Ok(Slash::Think(Think::Off))));
        assert_eq!(Slash::parse("/grow 32k"), Some(Ok(Slash::Grow(Some(32768)))));
        for wrong in ["/save", "/load", "/set warmth", "/think loudly", "/grow much", "/drop some"] {
            assert!(Slash::parse(wrong).unwrap().is_err(), "{wrong}");
        }
        assert!(Slash::parse("/nonsense x").unwrap().unwrap_err().contains("/nonsense"));
    }

    #[test]
    fn every_command_is_in_the_help_and_understood() {
        for name in NAMES {
            assert!(HELP.contains(name), "{name}");
            let said = Slash::parse(&format!("{name} 5")).unwrap();
            assert!(said.is_ok() || ["/set", "/think"].contains(&name), "{name}: {said:?}");
        }
    }
}
