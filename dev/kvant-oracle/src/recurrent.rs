//! Mixers with recurrent state, token by token.

use crate::function::{activate, add, dot, sigmoid, silu, softplus};
use crate::oracle::{Rows, Run, StateTrace, scaled};
use crate::weights::{Weights, rms};
use kvant_cache::{SlotKind, StateSlot};
use kvant_model::description::{
    Convolution, DecayRate, DeltaProjection, GateOrder, GatedDeltaNet, GatedNorm, Mamba2, ShortConv,
};

/// Gated short convolutions.
pub fn short_conv(run: &mut Run<'_>, of: &ShortConv, x: &Rows) -> Rows {
    let weights = run.weights;
    let channels = of.conv.channels;
    let projected: Rows = x.iter().map(|x| weights.linear(&of.input, x)).collect(); // B, C, x
    let inputs: Rows =
        projected.iter().map(|parts| times(&parts[..channels], &parts[2 * channels..])).collect();
    let convolved = convolve(weights, &of.conv, &inputs);
    keep(run, of.slot, StateTrace { conv_inputs: inputs, matrices: Rows::new() });
    let gated = projected.iter().zip(&convolved).map(|(parts, y)| times(&parts[channels..2 * channels], y));
    gated.map(|y| weights.linear(&of.output, &y)).collect()
}

/// Mamba-2.
pub fn mamba2(run: &mut Run<'_>, of: &Mamba2, x: &Rows) -> Rows {
    let weights = run.weights;
    let (heads, head_dim, width) = (of.dims.heads, of.dims.head_dim, of.dims.state);
    let (inner, group_width) = (heads * head_dim, of.dims.groups * width);
    let (mut zs, mut inputs, mut dts) = (Rows::new(), Rows::new(), Rows::new());
    for x in x {
        let projected = weights.linear(&of.input, x);
        let mut rest = &projected[..];
        let [z, x, b, c, dt] = [inner, inner, group_width, group_width, heads].map(|n| {
            let (part, after) = rest.split_at(n);
            rest = after;
            part.to_vec()
        });
        assert!(rest.is_empty(), "z, x, B, C and dt are all that the input layer gives");
        let [by_z, by_x, by_b, by_c, by_dt] = of.part_scales;
        zs.push(scaled(z, by_z));
        inputs.push([scaled(x, by_x), scaled(b, by_b), scaled(c, by_c)].concat());
        dts.push(scaled(dt, by_dt));
    }
    let (rates, skip, dt_bias) =
        (rates(weights, &of.decay), weights.vector(&of.skip), weights.vector(&of.dt_bias));
    let mut states = vec![vec![vec![0.0; width]; head_dim]; heads]; // (heads, head_dim, state)
    let (mut out, mut matrices) = (Rows::new(), Rows::new());
    for (token, conv) in convolve(weights, &of.conv, &inputs).iter().enumerate() {
        let (x, bc) = conv.split_at(inner);
        let (b, c) = bc.split_at(group_width);
        let mut y = Vec::new(); // (heads, head_dim)
        for (head, state) in states.iter_mut().enumerate() {
            let group = head / (heads / of.dims.groups);
            let (b, c) = (&b[group * width..][..width], &c[group * width..][..width]);
            let mut dt = softplus(dts[token][head] + dt_bias[head]);
            if let Some((least, most)) = of.dt_limit {
                dt = dt.clamp(f64::from(least), f64::from(most));
            }
            for (channel, state) in state.iter_mut().enumerate() {
                let x = x[head * head_dim + channel];
                state.iter_mut().for_each(|s| *s *= (dt * rates[head]).exp());
                add(state, b, dt * x);
                y.push(dot(state, c) + skip[head] * x);
            }
        }
        matrices.push(states.iter().flatten().flatten().copied().collect());
        let gated = gate(weights, of.norm.as_ref(), &y, &zs[token]);
        out.push(weights.linear(&of.output, &gated));
    }
    keep(run, of.slot, StateTrace { conv_inputs: inputs, matrices });
    out
}

/// `y` gated with silu(z), and normed before or after.
fn gate(weights: &Weights, norm: Option<&GatedNorm>, y: &[f64], z: &[f64]) -> Vec<f64> {
    let z: Vec<f64> = z.iter().map(|&z| silu(z)).collect();
    let Some(GatedNorm { weight, width, eps, order }) = norm else { return times(y, &z) };
    let normed = |y: &[f64]| {
        let groups: Vec<f64> = y.chunks(*width).flat_map(|group| rms(group, *eps)).collect();
        times(&groups, &weights.vector(weight))
    };
    match order {
        GateOrder::GateFirst => normed(&times(y, &z)),
        GateOrder::NormFirst => times(&normed(y), &z),
    }
}

/// What a DeltaNet's projection gives for a token.
struct DeltaProjected {
    qkv: Vec<f64>, // all queries, all keys, all values
    z: Vec<f64>,   // (value_heads, value_dim)
    b: Vec<f64>,   // (value_heads)
    a: Vec<f64>,   // (value_heads)
}

/// Gated DeltaNets.
pub fn gated_delta_net(run: &mut Run<'_>, of: &GatedDeltaNet, x: &Rows) -> Rows {
    let weights = run.weights;
    let (key_dim, value_dim) = (of.dims.key_dim, of.dims.value_dim);
    let key_width = of.dims.key_heads * key_dim;
    let projected: Vec<DeltaProjected> = x.iter().map(|x| project(weights, of, x)).collect();
    let inputs: Rows = projected.iter().map(|parts| parts.qkv.clone()).collect();
    let (rates, dt_bias) = (rates(weights, &of.decay), weights.vector(&of.dt_bias));
    let mut states = vec![vec![vec![0.0; value_dim]; key_dim]; of.dims.value_heads]; // (value_heads, key_dim, value_dim)
    let (mut out, mut matrices) = (Rows::new(), Rows::new());
    for (conv, DeltaProjected { z, b, a, .. }) in convolve(weights, &of.conv, &inputs).iter().zip(&projected)
    {
        let mut y = Vec::new(); // (value_heads, value_dim)
        for (head, state) in states.iter_mut().enumerate() {
            let key_head = of.dims.key_head(head);
            let unit = |x: &[f64]| scale_by(x, 1.0 / (dot(x, x) + f64::from(of.qk_eps)).sqrt());
            let q = scale_by(&unit(&conv[key_head * key_dim..][..key_dim]), 1.0 / (key_dim as f64).sqrt());
            let k = unit(&conv[key_width + key_head * key_dim..][..key_dim]);
            let v = &conv[2 * key_width + head * value_dim..][..value_dim];
            let g = rates[head] * softplus(a[head] + dt_bias[head]);
            state.iter_mut().flatten().for_each(|s| *s *= g.exp());
            let known = read(state, &k);
            let u: Vec<f64> = v.iter().zip(known).map(|(v, known)| sigmoid(b[head]) * (v - known)).collect();
            state.iter_mut().zip(&k).for_each(|(row, &k)| add(row, &u, k));
            y.extend(read(state, &q));
        }
        matrices.push(states.iter().flatten().flatten().copied().collect());
        let gates: Vec<f64> = z.iter().map(|&z| silu(z)).collect();
        out.push(weights.linear(&of.output, &times(&weights.norm(&of.norm, &y), &gates)));
    }
    keep(run, of.slot, StateTrace { conv_inputs: inputs, matrices });
    out
}

fn project(weights: &Weights, of: &GatedDeltaNet, x: &[f64]) -> DeltaProjected {
    match &of.projection {
        DeltaProjection::Apart { qkv, z, b, a } => DeltaProjected {
            qkv: weights.linear(qkv, x),
            z: weights.linear(z, x),
            b: weights.linear(b, x),
            a: weights.linear(a, x),
        },
        DeltaProjection::ByKeyHead { qkvz, ba } => {
            let group = of.dims.value_heads / of.dims.key_heads;
            let (keys, values) = (of.dims.key_dim, group * of.dims.value_dim);
            let [mut q, mut k, mut v, mut z] = [const { Vec::new() }; 4];
            for head in weights.linear(qkvz, x).chunks(2 * keys + 2 * values) {
                q.extend_from_slice(&head[..keys]);
                k.extend_from_slice(&head[keys..2 * keys]);
                v.extend_from_slice(&head[2 * keys..2 * keys + values]);
                z.extend_from_slice(&head[2 * keys + values..]);
            }
            let (mut b, mut a) = (Vec::new(), Vec::new());
            for head in weights.linear(ba, x).chunks(2 * group) {
                b.extend_from_slice(&head[..group]);
                a.extend_from_slice(&head[group..]);
            }
            DeltaProjected { qkv: [q, k, v].concat(), z, b, a }
        }
    }
}

/// `Sᵀ k`.
fn read(state: &[Vec<f64>], k: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; state[0].len()];
    state.iter().zip(k).for_each(|(row, &k)| add(&mut sum, row, k));
    sum
}

/// A, one for each head.
fn rates(weights: &Weights, decay: &DecayRate) -> Vec<f64> {
    match decay {
        DecayRate::Log(logs) => weights.vector(logs).iter().map(|log| -log.exp()).collect(),
        DecayRate::Plain(rates) => weights.vector(rates),
    }
}

/// A causal convolution of every channel.
fn convolve(weights: &Weights, of: &Convolution, inputs: &Rows) -> Rows {
    let taps = weights.vector(&of.weight); // (channels, kernel)
    let bias = of.bias.as_ref().map(|bias| weights.vector(bias));
    assert_eq!(taps.len(), of.channels * of.kernel, "taps of {} channels", of.channels);
    let output = |token: usize, channel: usize| {
        let mut y = bias.as_ref().map_or(0.0, |bias| bias[channel]);
        for tap in 0..of.kernel {
            // The last tap is the current token's.
            if let Some(at) = (token + tap + 1).checked_sub(of.kernel) {
                y += taps[channel * of.kernel + tap] * inputs[at][channel];
            }
        }
        of.activation.map_or(y, |function| activate(function, y))
    };
    (0..inputs.len()).map(|token| (0..of.channels).map(|channel| output(token, channel)).collect()).collect()
}

fn keep(run: &mut Run<'_>, slot: StateSlot, state: StateTrace) {
    match run.description.slots.get(slot.index()).expect("a slot of the description").kind {
        SlotKind::Recurrent(_) => run.trace.states.insert(slot, state),
        SlotKind::KeysValues(_) | SlotKind::View(_) | SlotKind::Latent(_) => {
            panic!("a slot without recurrent state")
        }
    };
}

fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
    assert_eq!(a.len(), b.len(), "a product of rows of different widths");
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

fn scale_by(x: &[f64], by: f64) -> Vec<f64> {
    x.iter().map(|x| x * by).collect()
}
