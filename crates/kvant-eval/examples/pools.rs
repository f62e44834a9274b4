//! A whole decode step on kvant's thread pool and on rayon's, in one process and by turns:
//!
//!     cargo run --release -p kvant-eval --example pools -- MODEL [--threads 2,16] [--depth 512] [--kv int4] [--rounds 20]
//!
//! Both hand out the same tasks in the same order and give the same logits, bit for bit; what differs is how threads
//! come to a region and leave it. Rayon gets its best case: the step runs on one of its own threads, so that nothing
//! is sent into the pool from outside, and the ways that it has to call something on several threads are all tried.

use kvant_cpu::LoadOptions;
use kvant_engine::{KvCache, Policy};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use kvant_threads::{Executor, Pool};
use std::error::Error;
use std::time::Instant;

/// Untimed steps of a turn, in which the threads of the pool wake up and those of the others fall asleep.
const WARM_UP: usize = 2;
/// Timed steps of a turn.
const STEPS: usize = 16;
/// Tokens of a pass that reads the context.
const CHUNK: usize = 256;

/// Ways to call something on the threads of the rayon pool that the caller is a thread of.
#[derive(Clone, Copy)]
enum Way {
    /// A tree of `join`: what nobody has stolen its caller does itself.
    Join,
    /// A scope with a spawned call for every other thread.
    Scope,
    /// `broadcast`, which waits for all threads.
    Broadcast,
}

struct Rayon {
    threads: usize,
    way: Way,
}

impl Executor for Rayon {
    fn threads(&self) -> usize {
        self.threads
    }

    fn run(&self, threads: usize, work: &(dyn Fn() + Sync)) {
        match self.way {
            Way::Join => join(threads, work),
            Way::Scope => rayon::in_place_scope(|scope| {
                (1..threads).for_each(|_| scope.spawn(|_| work()));
                work();
            }),
            Way::Broadcast => drop(rayon::broadcast(|_| work())),
        }
    }
}

fn join(threads: usize, work: &(dyn Fn() + Sync)) {
    match threads {
        0 | 1 => work(),
        _ => drop(rayon::join(|| join(threads - threads / 2, work), || join(threads / 2, work))),
    }
}

struct Options {
    model: String,
    threads: Vec<usize>,
    depth: usize,
    kv: Policy,
    rounds: usize,
}

/// A pool and the seconds that steps have taken on it.
struct Entry {
    name: &'static str,
    pool: Pool,
    seconds: Vec<f64>,
}

impl Entry {
    fn new(name: &'static str, pool: Pool) -> Self {
        Self { name, pool, seconds: Vec::new() }
    }

    /// Milliseconds of the fastest step and of one in the middle.
    fn figures(&mut self) -> [f64; 2] {
        self.seconds.sort_by(f64::total_cmp);
        [self.seconds[0], self.seconds[self.seconds.len() / 2]].map(|seconds| 1e3 * seconds)
    }
}

/// A sequence that is brought to the same depth again and again.
struct Decoder<'m> {
    model: &'m Model,
    kv: KvCache,
    tokens: Vec<u32>,
}

impl Decoder<'_> {
    /// Reads or forgets tokens until there are `depth`.
    fn reach(&mut self, depth: usize) -> Result<(), Box<dyn Error>> {
        self.kv.truncate(depth);
        while self.kv.len() < depth {
            let end = depth.min(self.kv.len() + CHUNK);
            self.pass(end)?;
        }
        Ok(())
    }

    /// One pass up to position `end`; the logits of its last token.
    fn pass(&mut self, end: usize) -> Result<Vec<u32>, Box<dyn Error>> {
        let tokens = &self.tokens[self.kv.len()..end];
        let chunk = Chunk::new(tokens, tokens.len() - 1..tokens.len());
        let logits = self.model.forward(Pass::new(&[chunk]), &mut [self.kv.sequence_mut()])?.into_logits();
        Ok(logits.data().iter().map(|logit| logit.to_bits()).collect())
    }

    /// A turn: the seconds of each step, and the logits after the last.
    fn turn(&mut self, depth: usize) -> Result<(Vec<f64>, Vec<u32>), Box<dyn Error>> {
        self.reach(depth)?;
        let mut seconds = Vec::with_capacity(STEPS);
        let mut last = Vec::new();
        for step in 0..WARM_UP + STEPS {
            let start = Instant::now();
            last = self.pass(depth + step + 1)?;
            if step >= WARM_UP {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        Ok((seconds, last))
    }
}

/// All pools of so many threads, in turns. Called on a thread of rayon's.
fn compare(model: &Model, threads: usize, options: &Options) -> Result<(), String> {
    let rayon = |name, way| Entry::new(name, Pool::with_executor(Rayon { threads, way }));
    let mut entries = [
        Entry::new("kvant", Pool::new(threads)),
        rayon("rayon, join", Way::Join),
        rayon("rayon, scope", Way::Scope),
        rayon("rayon, broadcast", Way::Broadcast),
        Entry::new("one thread", Pool::new(1)),
    ];
    let capacity = options.depth + WARM_UP + STEPS;
    let vocabulary = model.vocabulary() as u32;
    let tokens = (0..capacity as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocabulary).collect();
    let kv = KvCache::new(&options.kv, model.slots(), capacity).map_err(|e| e.to_string())?;
    let mut decoder = Decoder { model, kv, tokens };
    let mut expected = None;
    for round in 0..options.rounds {
        for place in 0..entries.len() {
            // Every pool follows every other.
            let count = entries.len();
            let entry = &mut entries[(place * (1 + round % (count - 1)) + round) % count];
            let turn = entry.pool.install(|| decoder.turn(options.depth));
            let (seconds, logits) = turn.map_err(|e| e.to_string())?;
            entry.seconds.extend(seconds);
            if *expected.get_or_insert_with(|| logits.clone()) != logits {
                return Err(format!("{}: other logits than the first pool's", entry.name));
            }
        }
    }
    let ours = entries[0].figures();
    for entry in &mut entries {
        let [best, median] = entry.figures();
        println!(
            "| {threads} | {} | {best:.3} | {median:.3} | {:.3} | {:.3} |",
            entry.name,
            best / ours[0],
            median / ours[1]
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options(std::env::args().skip(1))?;
    let checkpoint = Checkpoint::open(&options.model)?;
    let model = Pool::default().install(|| kvant_cpu::load(&checkpoint, LoadOptions::default()))?;
    let Options { depth, kv, rounds, .. } = &options;
    println!("{}: {} steps on each pool, at {depth} tokens, KV {kv}\n", options.model, rounds * STEPS);
    println!("| threads | pool | best, ms | median, ms | best, of kvant's | median, of kvant's |");
    println!("|--:|---|--:|--:|--:|--:|");
    for &threads in &options.threads {
        let rayon = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        rayon.install(|| compare(&model, threads, &options))?;
    }
    Ok(())
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    let model = arguments.next().ok_or("which model?")?;
    let kv = "int4".parse()?;
    let mut options = Options { model, threads: vec![Pool::default().threads()], depth: 512, kv, rounds: 20 };
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--threads" => options.threads = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--depth" => options.depth = value.parse()?,
            "--kv" => options.kv = value.parse()?,
            "--rounds" => options.rounds = value.parse()?,
            _ => return Err(format!("unknown argument {argument}").into()),
        }
    }
    Ok(options)
}
