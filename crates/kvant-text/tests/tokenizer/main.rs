//! Tokenizers against reference ids and naive oracles. The fixtures are in `tests/data/tokenizer`.

mod checkpoint;
mod hostile;
mod metadata;
mod oracles;
mod references;
mod vocabularies;
