//! What a server is like to its clients: many streams at once, prompts it knows, and answers beside a long prompt.

use super::wire::Site;
use crate::failure::Failure;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

/// Streams at a time.
const STREAMS: [usize; 4] = [1, 2, 4, 8];

/// Streams that are being answered while a long prompt is read.
const BESIDE: usize = 4;

/// Tokens of contexts, of answers and of the long prompt, where the server's context allows them.
const CONTEXT: usize = 512;
const ANSWER: usize = 128;
const LONG: usize = 4096;

/// A figure.
struct Row {
    test: String,
    value: f64,
    unit: &'static str,
    /// How many times as good, or bad, as the row before it that it belongs to.
    ratio: Option<f64>,
}

/// The sizes for a server.
struct Sizes {
    context: usize,
    answer: usize,
    long: usize,
}

/// Measures and prints a table, or one JSON object per row.
pub fn run(site: &Site, is_json: bool) -> Result<(), Failure> {
    let models = site.json("/v1/models", None)?;
    let name = models["data"][0]["id"].as_str().unwrap_or_default();
    let room = models["data"][0]["max_model_len"].as_u64().unwrap_or(0) as usize;
    let sizes =
        Sizes { context: CONTEXT.min(room / 4), answer: ANSWER.min(room / 8), long: LONG.min(room / 4 * 3) };
    let load = Load { site, sizes };
    // The first request pays for what is made on first use.
    load.streams(1, 1000)?;
    let mut rows = load.throughput()?;
    rows.extend(load.prefix()?);
    rows.extend(load.gaps()?);
    let mut out = crate::shown::stdout();
    if is_json {
        for Row { test, value, unit, ratio } in &rows {
            writeln!(
                out,
                "{}",
                json!({"test": test, "value": value, "unit": unit, "ratio": ratio, "model": name})
            )?;
        }
        return Ok(());
    }
    let mut table = Table::new(&[Left("test"), Right("value"), Left("unit"), Right("ratio")]);
    for Row { test, value, unit, ratio } in rows {
        let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        table.row([test, format!("{value:.1}"), unit.to_owned(), ratio]);
    }
    table.write(&mut out, 0)?;
    writeln!(out, "\n{name}: contexts of {} tokens, answers of {}", load.sizes.context, load.sizes.answer)?;
    Ok(())
}

struct Load<'s> {
    site: &'s Site,
    sizes: Sizes,
}

impl Load<'_> {
    /// `count` tokens of words that no other `seed` has.
    fn prompt(&self, seed: usize, count: usize) -> Result<Vec<Value>, Failure> {
        const PARTS: [&str; 16] = [
            "ba", "ke", "li", "mo", "nu", "pa", "re", "si", "to", "vu", "cha", "dro", "fle", "gri", "sta",
            "tho",
        ];
        let mut state = seed as u64 + 1;
        let mut text = String::new();
        for _ in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let part = |shift: u32| PARTS[(state >> shift) as usize % 16];
            text += &format!("{}{}{} ", part(60), part(56), part(52));
        }
        let tokens = self.site.json("/tokenize", Some(&json!({"content": text})))?;
        let mut tokens = tokens["tokens"].as_array().cloned().unwrap_or_default();
        tokens.truncate(count);
        Ok(tokens)
    }

    /// The times of an answer of `tokens` tokens.
    fn answer(&self, prompt: &[Value], tokens: usize) -> Result<(Instant, Vec<Instant>), Failure> {
        let body = json!({"prompt": prompt, "max_tokens": tokens, "stream": true, "temperature": 0, "ignore_eos": true});
        let (sent, came) = self.site.stream("/v1/completions", &body)?;
        if came.is_empty() {
            return Err(Failure::new("the server sent an answer without tokens"));
        }
        Ok((sent, came))
    }

    /// The times of the pieces of several answers at once.
    fn streams(&self, count: usize, seed: usize) -> Result<Vec<Vec<Instant>>, Failure> {
        let prompts = self.prompts(count, seed, self.sizes.context)?;
        Ok(self.together(&prompts, self.sizes.answer, || ())?.0)
    }

    fn prompts(&self, count: usize, seed: usize, tokens: usize) -> Result<Vec<Vec<Value>>, Failure> {
        (0..count).map(|i| self.prompt(seed + i, tokens)).collect()
    }

    /// The same for these prompts, with something else done meanwhile.
    fn together<T>(
        &self,
        prompts: &[Vec<Value>],
        tokens: usize,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<(Vec<Vec<Instant>>, T), Failure> {
        std::thread::scope(|scope| {
            let mut clients = Vec::new();
            for prompt in prompts {
                clients.push(scope.spawn(move || self.answer(prompt, tokens)));
            }
            let done = meanwhile();
            let mut streams = Vec::new();
            for client in clients {
                streams.push(client.join().map_err(|_| Failure::new("a client failed"))??.1);
            }
            Ok((streams, done))
        })
    }

    /// Tokens per second of all streams together, while all are being answered.
    fn throughput(&self) -> Result<Vec<Row>, Failure> {
        let mut rows: Vec<Row> = Vec::new();
        for count in STREAMS {
            let value = rate(&self.streams(count, 100 * count)?);
            let ratio = rows.first().map(|one| value / one.value);
            rows.push(Row { test: format!("{count} streams"), value, unit: "tok/s", ratio });
        }
        Ok(rows)
    }

    /// From a request to its first token, for a prompt that is new and for one that is known.
    fn prefix(&self) -> Result<Vec<Row>, Failure> {
        let prompt = self.prompt(7, self.sizes.long)?;
        let first = || -> Result<f64, Failure> {
            let (sent, came) = self.answer(&prompt, 2)?;
            Ok(millis(came[0] - sent))
        };
        let (new, known) = (first()?, first()?);
        let test = |what: &str| format!("first token, {} tokens of prompt, {what}", self.sizes.long);
        Ok(vec![
            Row { test: test("new"), value: new, unit: "ms", ratio: None },
            Row { test: test("known"), value: known, unit: "ms", ratio: Some(new / known) },
        ])
    }

    /// Between two tokens of a stream, in peace and while a long prompt is read.
    fn gaps(&self) -> Result<Vec<Row>, Failure> {
        let quiet = sorted_gaps(&self.streams(BESIDE, 2000)?, None);
        let long = self.prompt(9, self.sizes.long)?;
        let prompts = self.prompts(BESIDE, 3000, 64.min(self.sizes.context))?;
        // As long as it takes: the answers outlast the prompt.
        let (streams, during) = self.together(&prompts, self.sizes.long / 2, || {
            std::thread::sleep(Duration::from_millis(500));
            self.answer(&long, 1)
        })?;
        let (sent, came) = during?;
        let busy = sorted_gaps(&streams, Some((sent, came[0])));
        let (median, high) = (at(&quiet, 0.5), at(&busy, 0.99));
        let test = format!("between tokens, {BESIDE} streams, median");
        let mut rows = vec![Row { test, value: median, unit: "ms", ratio: None }];
        if busy.is_empty() {
            eprintln!(
                "note: the prompt was read only after the other answers had ended, so the delay it causes was not measured"
            );
        } else {
            let test = format!("the same, 99 %, while {} tokens of prompt are read", self.sizes.long);
            rows.push(Row { test, value: high, unit: "ms", ratio: Some(high / median) });
        }
        Ok(rows)
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Pieces per second while all streams were under way; over the whole time if they never were.
fn rate(streams: &[Vec<Instant>]) -> f64 {
    let firsts = || streams.iter().filter_map(|stream| stream.first().copied());
    let lasts = || streams.iter().filter_map(|stream| stream.last().copied());
    let together = firsts().max().zip(lasts().min()).filter(|(from, to)| to > from);
    let Some((from, to)) = together.or_else(|| firsts().min().zip(lasts().max())) else { return 0.0 };
    let pieces = streams.iter().flatten().filter(|&&time| time > from && time <= to).count();
    pieces as f64 / (to - from).as_secs_f64().max(1e-9)
}

/// Milliseconds between neighbours, of those that lie within a time.
fn sorted_gaps(streams: &[Vec<Instant>], within: Option<(Instant, Instant)>) -> Vec<f64> {
    let pairs = streams.iter().flat_map(|stream| stream.windows(2));
    let inside = |pair: &&[Instant]| within.is_none_or(|(from, to)| pair[0] >= from && pair[1] <= to);
    let mut gaps: Vec<f64> = pairs.filter(inside).map(|pair| millis(pair[1] - pair[0])).collect();
    gaps.sort_by(f64::total_cmp);
    gaps
}

/// The value that this part of all does not exceed; 0 where there are none.
fn at(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len() as f64 * part) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_gaps_are_those_of_the_time_in_common() {
        let start = Instant::now();
        let stream = |times: &[u64]| -> Vec<Instant> {
            times.iter().map(|&time| start + Duration::from_millis(time)).collect()
        };
        let streams = [stream(&[0, 100, 200, 300]), stream(&[100, 200, 300, 400])];
        // From 100 to 300: two pieces of each.
        assert!((rate(&streams) - 20.0).abs() < 1e-9);
        assert!((rate(&[stream(&[0, 100]), stream(&[200, 400])]) - 7.5).abs() < 1e-9);
        let gaps = sorted_gaps(&[stream(&[0, 10, 40, 100])], None);
        assert_eq!(gaps.iter().map(|gap| gap.round()).collect::<Vec<f64>>(), [10.0, 30.0, 60.0]);
        let part = sorted_gaps(
            &[stream(&[0, 10, 40, 100])],
            Some((streams[0][0], start + Duration::from_millis(50))),
        );
        assert_eq!(part.len(), 2);
        assert_eq!((at(&[1.0, 2.0, 3.0], 0.5), at(&[1.0, 2.0], 0.99), at(&[], 0.5)), (2.0, 2.0, 0.0));
    }
}
