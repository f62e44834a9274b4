//! What a job gets does not depend on who else is there, nor on what was there before.

use crate::support::*;
use kvant_engine::scheduler::SchedulerOptions;

const POLICIES: [&str; 3] = ["int4", "f16", "k=ch4:p128,v=rot4g32;recent=70;sinks=1"];

#[test]
fn a_seed_gives_the_same_tokens_alone_among_sixteen_and_after_a_hit() {
    let engine = engine();
    for policy in POLICIES {
        let requests: Vec<_> = (0..17u32)
            .map(|i| request(prompt(i % 5, 30 + 25 * i as usize % 300), u64::from(i), 20 + i as usize % 7))
            .collect();
        let expected: Vec<_> = requests.iter().map(|request| alone(&engine, policy, request)).collect();
        assert!(expected.iter().any(|(tokens, _)| tokens.len() >= 20), "the texts are long enough to tell");

        let mut scheduler = scheduler(&engine, policy, None, SchedulerOptions::default());
        let handle = scheduler.handle();
        for round in ["at first", "after hits"] {
            let mut ears = Vec::new();
            for request in &requests {
                ears.push(submit(&handle, request.clone()).unwrap());
                // Some join while others are under way.
                scheduler.step();
            }
            settle(&mut scheduler);
            for (number, (ear, (tokens, text))) in ears.iter().zip(&expected).enumerate() {
                ear.with(|heard| {
                    assert_eq!(&heard.tokens, tokens, "{policy}, job {number} {round}");
                    assert_eq!(&heard.text, text, "{policy}, job {number} {round}");
                });
            }
        }
        let counters = handle.counters();
        assert!(counters.cached_tokens > counters.prompt_tokens / 8, "{policy}: {counters:?}");
    }
}

#[test]
fn a_hit_is_counted_and_leaves_the_last_token_to_read() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    // 4 sinks and 3 pages of 64: the last one ends with the prompt.
    let whole = request(prompt(1, 196), 1, 3);
    let cached: Vec<usize> = [&whole, &whole, &request(prompt(1, 300), 1, 3), &request(prompt(2, 300), 1, 3)]
        .map(|request| {
            let ear = submit(&handle, request.clone()).unwrap();
            settle(&mut scheduler);
            ear.with(|heard| {
                let usage = heard.end.as_ref().unwrap().as_ref().unwrap().1;
                assert_eq!((Some(usage.cached), usage.prompt), (heard.cached, request.prompt.len()));
                usage.cached
            })
        })
        .to_vec();
    assert_eq!(cached, [0, 132, 196, 0]);
}

#[test]
fn a_conversation_goes_on_from_what_was_said() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let first = request(prompt(1, 100), 5, 150);
    let ear = submit(&handle, first.clone()).unwrap();
    settle(&mut scheduler);
    let mut tokens = [first.prompt, ear.tokens()].concat();
    let said = tokens.len();
    tokens.extend(prompt(9, 30));
    let second = request(tokens, 6, 10);
    let ear = submit(&handle, second.clone()).unwrap();
    settle(&mut scheduler);
    assert!(ear.with(|heard| heard.cached.unwrap()) >= said - 64);
    assert_eq!(ear.tokens(), alone(&engine, "int4", &second).0);
}

#[test]
fn probabilities_are_the_same_alone_and_in_company() {
    let engine = engine();
    let listen = |company: usize| {
        let mut scheduler = usual(&engine);
        let ear = Ear::default();
        let mut jobs = vec![job(request(prompt(0, 90), 3, 12), &ear)];
        jobs[0].logprobs = Some(5);
        jobs.extend((0..company as u32).map(|i| job(request(prompt(i, 120), 4, 12), &Ear::default())));
        scheduler.handle().submit(jobs).unwrap();
        settle(&mut scheduler);
        ear.with(|heard| heard.logprobs.clone())
    };
    let quiet = listen(0);
    assert!(!quiet.is_empty() && quiet.iter().all(|found| found.top.len() == 5 && found.chosen <= 0.0));
    assert_eq!(quiet, listen(7));
}
