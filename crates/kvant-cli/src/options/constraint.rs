//! Flags that bind an answer to a schema or a grammar.

use crate::failure::Failure;
use clap::Args;
use kvant_engine::grammar::Grammar;
use kvant_engine::{Constraint, Engine};
use serde_json::Value;
use std::path::Path;

/// What an answer has to be.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Generation")]
pub struct ConstraintOptions {
    /// Answer in JSON that matches this schema: a file, or the schema itself; {} for any
    /// JSON
    #[arg(short, long, value_name = "SCHEMA", conflicts_with = "grammar")]
    json_schema: Option<String>,

    /// Answer in this grammar (GBNF or Lark): a file, or the grammar itself
    #[arg(long, value_name = "GRAMMAR", alias = "grammar-file")]
    grammar: Option<String>,

    /// The same as --json-schema, as Ollama calls it; json for any object
    #[arg(long, value_name = "FORMAT", hide = true, conflicts_with_all = ["grammar", "json_schema"])]
    format: Option<String>,
}

/// A schema or grammar, read and not yet compiled.
#[derive(Clone)]
pub enum Bound {
    Schema(Value),
    Grammar(Grammar),
}

impl ConstraintOptions {
    /// What was asked for, read from its file where it names one.
    pub fn bound(&self) -> Result<Option<Bound>, Failure> {
        if self.format.as_deref() == Some("json") {
            return Ok(Some(Bound::Grammar(Grammar::json_object())));
        }
        if let Some(schema) = self.json_schema.as_ref().or(self.format.as_ref()) {
            let text = text_of_flag(schema)?;
            let value: Value = serde_json::from_str(&text).map_err(|e| {
                Failure::new(format!("--json-schema: neither an existing file nor valid JSON: {e}"))
            })?;
            return Ok(Some(Bound::Schema(value)));
        }
        let Some(grammar) = &self.grammar else { return Ok(None) };
        let text = text_of_flag(grammar)?;
        let grammar = Grammar::written(text).map_err(|e| Failure::new(format!("--grammar: {e}")))?;
        Ok(Some(Bound::Grammar(grammar)))
    }
}

/// The text of a file, or what is no file itself.
pub fn text_of_flag(given: &str) -> Result<String, Failure> {
    let path = Path::new(given);
    if !path.is_file() {
        let is_path = [".gbnf", ".lark", ".json"].iter().any(|end| given.ends_with(end));
        return match is_path && !given.contains(char::is_whitespace) {
            true => Err(Failure::new(format!("{given}: no such file"))),
            false => Ok(given.to_owned()),
        };
    }
    std::fs::read_to_string(path).map_err(|e| Failure::new(format!("{given}: cannot read it: {e}")))
}

impl Bound {
    /// What the answer has to be.
    pub fn grammar(&self) -> Grammar {
        match self {
            Self::Schema(schema) => Grammar::JsonSchema(schema.clone()),
            Self::Grammar(grammar) => grammar.clone(),
        }
    }

    /// The rule, for the tokens of a model.
    #[cfg(feature = "grammar")]
    pub fn compile(&self, engine: &Engine) -> Result<Box<dyn Constraint>, Failure> {
        use kvant_engine::grammar::GrammarCompiler;
        let compiler = GrammarCompiler::new(engine.tokenizer())?;
        let flag = match self {
            Self::Schema(_) => "--json-schema",
            Self::Grammar(_) => "--grammar",
        };
        let rule = compiler.compile(&self.grammar()).map_err(|e| Failure::new(format!("{flag}: {e}")))?;
        Ok(Box::new(rule))
    }

    /// This build has no grammars.
    #[cfg(not(feature = "grammar"))]
    pub fn compile(&self, _: &Engine) -> Result<Box<dyn Constraint>, Failure> {
        Err(Failure::new("kvant was built without schemas and grammars (feature `grammar`)"))
    }
}
