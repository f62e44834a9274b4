//! Every option of a block that fixtures do not have, on descriptions made by hand: the CPU backend against the oracle.
//!
//! A case also says how the description reads without its option. The oracle's logits must then be others, so that an option
//! which both leave out does not pass.

use crate::maker::{HIDDEN, Made, Maker, VOCABULARY};
use crate::support::compare_backend;
use kvant_cpu::{Cpu, LoadOptions};
use kvant_model::Backend;
use kvant_model::description::*;
use kvant_oracle::Oracle;

/// Largest absolute difference between f32 and f64 over two or three blocks; logits are a few units large.
const BOUND: f64 = 2e-5;
/// What an option changes at least.
const LIVE: f64 = 1e-2;
/// Tokens of a sequence without recurrent state.
const TOKENS: usize = 21;

/// Holds the CPU backend against the oracle, in one piece and in odd chunks; `without` takes the option out.
pub fn check(name: &str, made: Made, without: impl FnOnce(&mut Description)) {
    check_chunks(name, made, &[&[TOKENS], &[5, 1, 9, 2, 4]], without);
}

/// The same with chunks of one's own, each list of which holds as many tokens.
pub fn check_chunks(name: &str, made: Made, chunks: &[&[usize]], without: impl FnOnce(&mut Description)) {
    let Made { description, checkpoint } = made;
    let count = chunks[0].iter().sum::<usize>() as u32;
    let tokens: Vec<u32> = (0..count).map(|i| (i * 17 + i * i / 7 + 5) % VOCABULARY as u32).collect();
    let capacity = 4 * tokens.len();
    let truth = Oracle::new(&description, &checkpoint).unwrap().run(&tokens, capacity);
    let mut plain = description.clone();
    without(&mut plain);
    let other = Oracle::new(&plain, &checkpoint).unwrap().run(&tokens, capacity);
    let change = truth.logits.concat().into_iter().zip(other.logits.concat()).map(|(a, b)| (a - b).abs());
    let change = change.fold(0.0, f64::max);
    assert!(change > LIVE, "{name}: without it logits differ by {change:.1e} only");

    let network = Cpu::new(LoadOptions::AS_STORED).unwrap().compile(&description, &checkpoint).unwrap();
    for chunks in chunks {
        let found = compare_backend(&*network, &description.slots, &tokens, chunks, capacity, &truth);
        assert!(found.largest() < BOUND, "{name}, chunks {chunks:?}: {}", found.line());
    }
}

pub fn pre_norm(maker: &mut Maker, mixer: Mixer) -> Residual {
    Residual::pre_norm(maker.norm(HIDDEN), mixer)
}

/// Attention and an MLP side by side, with every norm and multiplier a layer may have.
fn side_by_side() -> Made {
    let mut maker = Maker::new(10);
    let (attention, mlp) = (maker.attention(0), maker.mlp(16));
    let norms: Vec<Option<Norm>> = (0..5).map(|_| Some(maker.norm(HIDDEN))).collect();
    let [first, after_first, second, after_second, after] = norms.try_into().unwrap();
    let branches = vec![
        Branch {
            input_scale: 0.8,
            scale: 1.3,
            ..Branch::new(first, Mixer::Attention(Box::new(attention)), after_first)
        },
        Branch {
            input_scale: 1.4,
            scale: 0.6,
            ..Branch::new(second, Mixer::Ffn(Ffn::Dense(mlp)), after_second)
        },
    ];
    // A second residual without a norm, so that it reads a sum of the first.
    let plain = Branch { input_scale: 0.5, ..Branch::new(None, Mixer::Ffn(Ffn::Dense(maker.mlp(8))), None) };
    maker.model(vec![vec![
        Residual { after, scale: 0.7, keep: 0.9, ..Residual::sum(branches) },
        Residual { scale: 1.2, ..Residual::of(plain) },
    ]])
}

#[test]
fn branches_side_by_side_with_a_norm_of_their_sum() {
    fn first(description: &mut Description) -> &mut Residual {
        &mut description.layers[0].residuals[0]
    }
    check("norm of the sum", side_by_side(), |d| first(d).after = None);
    check("scale of a residual", side_by_side(), |d| first(d).scale = 1.0);
    check("norm after a branch", side_by_side(), |d| first(d).branches[0].after = None);
    check("scale of a branch", side_by_side(), |d| first(d).branches[1].scale = 1.0);
    check("scale of its input", side_by_side(), |d| first(d).branches[0].input_scale = 1.0);
    check("without the second branch", side_by_side(), |d| drop(first(d).branches.pop()));
    let last = |d: &mut Description| d.layers[0].residuals[1].branches[0].input_scale = 1.0;
    check("scale of an input without a norm", side_by_side(), last);
}

#[test]
fn frames() {
    let frame = || {
        let mut maker = Maker::new(11);
        let positions = maker.tensor(&[64, HIDDEN], 0.0, 0.5);
        let mlp = maker.mlp(16);
        let layer = vec![pre_norm(&mut maker, Mixer::Ffn(Ffn::Dense(mlp)))];
        let norm =
            Norm { kind: NormKind::Layer, bias: Some(maker.vector(HIDDEN, 0.0, 0.5)), ..maker.norm(HIDDEN) };
        let mut made = maker.model(vec![layer]);
        made.description.embedding.positions = Some(positions);
        made.description.embedding.scale = 1.9;
        made.description.head = Head { norm, scale: 0.6, soft_cap: Some(2.0), ..made.description.head };
        made
    };
    check("positions", frame(), |d| d.embedding.positions = None);
    check("embedding scale", frame(), |d| d.embedding.scale = 1.0);
    check("head scale", frame(), |d| d.head.scale = 1.0);
    check("head cap", frame(), |d| d.head.soft_cap = None);
    check("layer norm", frame(), |d| d.head.norm.kind = NormKind::Rms);
}
