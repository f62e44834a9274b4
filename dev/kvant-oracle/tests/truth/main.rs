//! The oracle against the reference, and backends against the oracle.

mod adapters;
mod attention;
mod blocks;
mod ffn;
mod fixtures;
mod maker;
mod mixers;
mod mtp;
mod support;
