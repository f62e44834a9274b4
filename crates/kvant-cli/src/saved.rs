//! `--session FILE`: a conversation, or a text, that goes on where it was left.

use crate::failure::Failure;
use kvant_engine::{Finish, LoadedModel, Reply, Request, ResumeError, Session, Signature, Snapshot};
use kvant_text::chat::Message;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

/// What a session is besides its cache.
#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Talk {
    /// A conversation.
    Chat {
        /// Instructions that come before it.
        system: Option<String>,
        /// Turns of user and assistant.
        turns: Vec<Message>,
    },
    /// A text that is continued.
    Text {
        /// All of it. The cache may lack the last token, which was chosen and not read.
        tokens: Vec<u32>,
    },
}

impl Talk {
    /// A text after a reply: what was asked and what came, without the token that ended it.
    pub fn text(request: &Request, reply: &Reply) -> Self {
        let ended = usize::from(matches!(reply.finish, Finish::EndOfText(_)));
        let added = &reply.tokens[..reply.tokens.len() - ended];
        Self::Text { tokens: [&request.prompt, added].concat() }
    }
}

/// Whether a session can be saved under this name: said before anything is computed that would then be lost.
pub fn check_place(path: &Path) -> Result<(), Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::new(format!("session {}: cannot be saved there: {why}", path.display()))
    };
    let Some(name) = path.file_name().filter(|_| !path.is_dir()) else {
        return Err(refused(&"a file name is needed"));
    };
    // A link stays a link: the folder of the file behind it is written to.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let probe = folder.join(format!(".{}.{}.check", name.to_string_lossy(), std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&probe).map_err(|e| refused(&e))?;
    fs::remove_file(&probe).map_err(|e| refused(&e))
}

/// The file of a session.
pub struct SessionFile {
    path: PathBuf,
    signature: Signature,
}

impl SessionFile {
    /// The file, which need not exist yet, for sessions of this model.
    pub fn new(path: &Path, opened: &LoadedModel) -> Result<Self, Failure> {
        Ok(Self { path: path.to_owned(), signature: opened.signature()? })
    }

    /// Its place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets `session` go on where the file leaves off; nothing if there is no file yet.
    pub fn resume(&self, session: &mut Session) -> Result<Option<Talk>, Failure> {
        if !self.path.try_exists().map_err(|e| self.failure(e))? {
            return Ok(None);
        }
        let saved = Snapshot::open(&self.path).map_err(|e| self.failure(e))?;
        session.resume(&saved, &self.signature).map_err(|e| match e {
            ResumeError::TooLong { held, context } => self.failure(format!(
                "holds {held} tokens, but the context is {context}: --ctx {held} or more holds it"
            )),
            other => self.failure(other),
        })?;
        if session.has_other_numerics() {
            let path = self.path.display();
            eprintln!(
                "note: session {path} was computed with other rounding; answers may differ in the last bit"
            );
        }
        let talk = serde_json::from_slice(saved.note())
            .map_err(|e| self.failure(format!("was not saved by `kvant run` or `kvant chat`: {e}")))?;
        Ok(Some(talk))
    }

    /// Saves the session; the file is replaced as a whole, or not at all.
    pub fn save(&self, session: &Session, talk: &Talk) -> Result<(), Failure> {
        let note = serde_json::to_vec(talk)?;
        session.save(&self.path, self.signature, &note).map_err(|e| self.failure(e))?;
        Ok(())
    }

    /// Renames the file so that another takes its place: `trip.kvant` to `trip.1.kvant`, or the next number that is free. Nothing if
    /// there is no file.
    pub fn put_aside(&self) -> Result<Option<PathBuf>, Failure> {
        // A link stays a link: the file behind it is renamed.
        let Ok(path) = fs::canonicalize(&self.path) else { return Ok(None) };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let end = path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
        let free = (1..)
            .map(|number| format!("{stem}.{number}{end}"))
            .find(|name| !path.with_file_name(name).exists());
        let Some(name) = free else { return Ok(None) };
        fs::rename(&path, path.with_file_name(&name))
            .map_err(|e| self.failure(format!("cannot be renamed: {e}")))?;
        Ok(Some(self.path.with_file_name(name)))
    }

    /// A failure with the file's name in front.
    pub fn failure(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(format!("session {}: {why}", self.path.display()))
    }
}
