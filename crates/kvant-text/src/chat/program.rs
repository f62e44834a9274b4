//! A template compiled, with the measuring of [`super::limits`] put in.
//!
//! minijinja counts instructions, not what they make, and recurses over expressions when it parses and compiles them. So expressions are
//! counted in tokens before they are parsed, both happen on a thread with a large stack, and the compiled program is written anew: an
//! instruction that makes a value is followed by a call of a function that measures it. The names of these functions cannot be written
//! in a template.

use std::collections::BTreeMap;

use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, Token, eval, make_string_output, parse, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use super::limits;

/// Bytes of a template. The longest of a published model has a fiftieth.
pub(super) const TEMPLATE_BYTES: usize = 1 << 20;

/// Tokens of one expression or tag. Parsing takes some stack for each.
pub(super) const EXPRESSION_TOKENS: usize = 4000;

/// `elif`s of a template. Each lies within the one before it.
const ELIFS: usize = 1000;

/// Stack for parsing, compiling and running. What is not used takes no memory.
const STACK: usize = 128 << 20;

const NAME: &str = "chat_template";

const SHARED: &str = "value that is shared";
const MADE: &str = "value that is made";
const KEPT: &str = "value that is kept";
const CONCATENATED: &str = "values joined";

/// Filters and methods that hand on what they were given: their results are not counted as new text.
const HAND_ON: [&str; 24] = [
    "attr",
    "batch",
    "chain",
    "d",
    "default",
    "dictsort",
    "first",
    "get",
    "groupby",
    "items",
    "keys",
    "last",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
    "slice",
    "sort",
    "unique",
    "values",
];

/// A program that runs within the bounds.
pub(super) struct Program<'source> {
    main: Instructions<'source>,
    blocks: BTreeMap<&'source str, Instructions<'source>>,
}

impl<'source> Program<'source> {
    /// Parses and compiles. Call it on a large stack.
    pub(super) fn compile(source: &'source str) -> Result<Self, Error> {
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        refuse_long(source, &syntax)?;
        let parsed = parse(source, NAME, syntax)?;
        let mut generator = CodeGenerator::new(NAME, source);
        generator.compile_stmt(&parsed);
        let (main, blocks) = generator.finish();
        let blocks = blocks.into_iter().map(|(name, block)| (name, measured(&block))).collect();
        Ok(Self { main: measured(&main), blocks })
    }

    /// Runs. Call it on a large stack.
    pub(super) fn run(
        &self,
        environment: &'source Environment<'source>,
        context: Value,
    ) -> Result<String, Error> {
        limits::begin();
        limits::size(&context)?;
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        eval(environment, &self.main, context, &self.blocks, &mut out, AutoEscape::None)?;
        drop(out);
        Ok(text)
    }
}

/// Gives an environment the functions that measure.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.add_function(SHARED, limits::shared);
    environment.add_function(MADE, limits::made);
    environment.add_function(KEPT, limits::kept);
    environment.add_function(CONCATENATED, limits::concatenated);
}

/// Runs `work` on a thread with a large stack; none if it panicked or there is no such thread.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".into()).stack_size(STACK);
        thread.spawn_scoped(scope, work).ok()?.join().ok()
    })
}

/// Refuses what would take too much stack to parse.
fn refuse_long(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let refusal = |what: String| Err(Error::new(ErrorKind::SyntaxError, what));
    if source.len() > TEMPLATE_BYTES {
        return refusal(format!("it is longer than {} KiB", TEMPLATE_BYTES >> 10));
    }
    let (mut tokens, mut elifs) = (0, 0);
    let (mut constants, mut folded) = (Constants::default(), 0_usize);
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => {
                (tokens, constants) = (0, Constants::default());
            }
            Token::VariableEnd | Token::BlockEnd => folded = folded.saturating_add(constants.folded()),
            _ => tokens += 1,
        }
        constants.take(&token);
        elifs += usize::from(matches!(token, Token::Ident("elif")));
        if tokens > EXPRESSION_TOKENS {
            return refusal(format!(
                "an expression of more than {EXPRESSION_TOKENS} tokens (line {})",
                span.start_line
            ));
        }
        if elifs > ELIFS {
            return refusal(format!("more than {ELIFS} `elif`s (line {})", span.start_line));
        }
        if folded > limits::VALUE_BYTES {
            let most = limits::VALUE_BYTES >> 20;
            return refusal(format!("constants of more than {most} MiB (line {})", span.start_line));
        }
    }
    Ok(())
}

/// The constants of an expression, which are multiplied while it is compiled: `'a' * 1000`.
#[derive(Default)]
struct Constants {
    /// Bytes of texts and items of lists.
    size: usize,
    /// The product of all numbers.
    product: usize,
    is_multiplied: bool,
    last_is_number: bool,
}

impl Constants {
    fn take(&mut self, token: &Token<'_>) {
        let number = match token {
            Token::Int(number) => usize::try_from(*number).ok(),
            Token::Float(number) => Some(number.abs() as usize),
            Token::Int128(_) => Some(usize::MAX),
            // A power of a number: as large as it likes.
            Token::Pow if self.last_is_number => Some(usize::MAX),
            _ => None,
        };
        self.last_is_number = matches!(token, Token::Int(_) | Token::Float(_));
        self.product = self.product.max(1).saturating_mul(number.unwrap_or(1).max(1));
        self.is_multiplied |= matches!(token, Token::Mul);
        self.size += match token {
            Token::Str(text) => 1 + text.len(),
            Token::String(text) => 1 + text.len(),
            Token::BracketOpen | Token::BraceOpen | Token::Comma => 1,
            _ => 0,
        };
    }

    /// How large the largest of them can become.
    fn folded(&self) -> usize {
        if self.is_multiplied { self.size.saturating_mul(self.product) } else { 0 }
    }
}

/// The same program with values measured.
fn measured<'source>(plain: &Instructions<'source>) -> Instructions<'source> {
    let mut code: Vec<(Instruction<'source>, u32)> = Vec::new();
    // Where each instruction begins now.
    let mut starts = Vec::new();
    let mut at = 0;
    while let Some(instruction) = plain.get(at) {
        starts.push(code.len() as u32);
        code.extend(with_measuring(instruction).into_iter().map(|instruction| (instruction, at)));
        at += 1;
    }
    starts.push(code.len() as u32);
    let mut out = Instructions::new(plain.name(), plain.source());
    for (mut instruction, from) in code {
        if let Some(target) = target(&mut instruction)
            && let Some(start) = starts.get(*target as usize)
        {
            *target = *start;
        }
        match (plain.get_span(from), plain.get_line(from)) {
            (Some(span), _) => out.add_with_span(instruction, span),
            (None, Some(line)) => out.add_with_line(instruction, line as u16),
            (None, None) => out.add(instruction),
        };
    }
    out
}

/// Where an instruction jumps to, or where the macro begins that it makes.
fn target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// An instruction, and what measures the value it takes or makes.
fn with_measuring<'source>(instruction: &Instruction<'source>) -> Vec<Instruction<'source>> {
    use Instruction as I;
    let measure = |name| I::CallFunction(name, Some(1));
    let by_name = |name: &str| measure(if HAND_ON.contains(&name) { SHARED } else { MADE });
    let plain = instruction.clone();
    match instruction {
        // The formatter counts what is written; raw text does not pass it.
        I::EmitRaw(text) => vec![I::LoadConst(Value::from_safe_string((*text).to_owned())), I::Emit],
        I::StringConcat => vec![I::CallFunction(CONCATENATED, Some(2))],
        I::Add | I::Mul | I::Slice => vec![plain, measure(MADE)],
        I::ApplyFilter(name, ..) | I::CallMethod(name, _) => vec![plain, by_name(name)],
        I::BuildList(_)
        | I::BuildTuple(_)
        | I::BuildMap(_)
        | I::CallFunction(..)
        | I::CallObject(_)
        | I::EndCapture => {
            vec![plain, measure(SHARED)]
        }
        I::StoreLocal(_) => vec![measure(SHARED), plain],
        // The namespace lies above the value.
        I::SetAttr(_) => vec![I::Swap, measure(KEPT), I::Swap, plain],
        _ => vec![plain],
    }
}
