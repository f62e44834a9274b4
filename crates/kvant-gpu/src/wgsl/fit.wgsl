// Scales fitted to numbers; docs/page-format.md of kvant-codec has the rule. Numbers in steps are multiples of 2⁻⁹ or 2⁻¹², so that sums
// are exact. Every product that is added to something is so by fma, so that nothing is left to contract.

// Where f32 has steps of 2⁻⁹.
const GRID = 24576.0;
// Where it has steps of 2⁻¹².
const FINE_GRID = 3072.0;

// A scale, a zero, and what takes numbers to steps under them, above the grid.
struct Trial {
    scale: f32,
    zero: f32,
    inverse: f32,
    offset: f32,
}

fn trial_of(scale: f32, zero: f32) -> Trial {
    let inverse = inverse_of(scale);
    return Trial(scale, zero, inverse, fma(-zero, inverse, GRID));
}

fn steps_of(trial: Trial, x: f32) -> f32 {
    return fma(x, trial.inverse, trial.offset);
}

// What is tried for numbers that share a scale, and what was summed up of them.
struct Fit {
    trials: array<Trial, 3>,
    // Of ranges: squared errors in steps.
    squares: vec3<f32>,
    // Of signed maxima: Σ steps · code and Σ code².
    along: vec3<f32>,
    power: vec3<f32>,
}

// Sums of the errors and codes under one trial, and of their products.
struct Line {
    offs: f32,
    codes: f32,
    along: f32,
    power: f32,
}

fn fit_begun(extent: Extent, plain: vec2<f32>, section: u32) -> Fit {
    let k = fit_constants(section);
    var fit: Fit;
    if FIT_RANGE {
        let step = (extent.high - extent.low) * k.part;
        for (var n = 0u; n < 3u; n++) {
            let low = stored(fma(step, k.low[n], extent.low));
            fit.trials[n] = trial_of(stored(step * k.width[n]) + 0.0, low + 0.0);
        }
    } else {
        let inverse = inverse_of(plain.x);
        for (var n = 0u; n < 3u; n++) {
            fit.trials[n] = Trial(plain.x * k.width[n], 0.0, inverse * k.low[n], 0.0);
        }
    }
    return fit;
}

fn fit_joined(before: Fit, x: f32, section: u32) -> Fit {
    var fit = before;
    if FIT_RANGE {
        for (var n = 0u; n < 3u; n++) {
            let steps = steps_of(fit.trials[n], x);
            let off = steps - round(steps);
            fit.squares[n] = fma(off, off, fit.squares[n]);
        }
    } else {
        for (var n = 0u; n < 3u; n++) {
            let steps = fma(x, fit.trials[n].inverse, FINE_GRID) - FINE_GRID;
            let code = min(round(steps), fit_constants(section).top);
            fit.along[n] = fma(steps, code, fit.along[n]);
            fit.power[n] = fma(code, code, fit.power[n]);
        }
    }
    return fit;
}

// The best range of those that were tried; `plain` where none reaches both ends.
fn best_trial(fit: Fit, extent: Extent, plain: vec2<f32>, section: u32) -> Trial {
    var best = trial_of(plain.x, plain.y);
    var least = 3.4028235e38;
    for (var n = 0u; n < 3u; n++) {
        let trial = fit.trials[n];
        let low = steps_of(trial, extent.low);
        let high = steps_of(trial, extent.high);
        let of_low = low - round(low);
        let of_high = high - round(high);
        let squares = fma(fma(of_low, of_low, of_high * of_high), END_WEIGHT, fit.squares[n]);
        let cost = trial.scale * trial.scale * squares;
        let beyond = max(GRID - low, high - (GRID + fit_constants(section).top));
        if beyond <= 0.5 && trial.inverse > 0.0 && cost < least {
            best = trial;
            least = cost;
        }
    }
    return best;
}

fn line_joined(line: Line, trial: Trial, x: f32) -> Line {
    let steps = steps_of(trial, x);
    let off = steps - round(steps);
    let code = round(steps) - GRID;
    return Line(line.offs + off, line.codes + code, fma(off, code, line.along), fma(code, code, line.power));
}

// An end of the range counts more than what lies between.
fn end_joined(line: Line, trial: Trial, x: f32) -> Line {
    let end = line_joined(Line(), trial, x);
    return Line(
        fma(end.offs, END_WEIGHT, line.offs),
        fma(end.codes, END_WEIGHT, line.codes),
        fma(end.along, END_WEIGHT, line.along),
        fma(end.power, END_WEIGHT, line.power),
    );
}

// Scale and zero of least squares for the codes under a trial, if they are better as stored.
fn line_scale(of_numbers: Line, trial: Trial, extent: Extent) -> vec2<f32> {
    let line = end_joined(end_joined(of_numbers, trial, extent.low), trial, extent.high);
    let count = extent.count + 2.0 * END_WEIGHT;
    let part = divided(1.0, count);
    let mean = -(line.codes * part);
    let spread = fma(mean, line.codes, line.power);
    var more = 0.0;
    if spread > 0.5 {
        more = divided(fma(mean, line.offs, line.along), spread);
    }
    let scale = stored(fma(trial.scale, more, trial.scale));
    more = fma(scale, trial.inverse, -1.0);
    var shift = fma(-more, line.codes, line.offs) * part;
    let zero = stored(fma(trial.scale, shift, trial.zero));
    shift = (zero - trial.zero) * trial.inverse;
    let of_shift = fma(fma(more, line.codes, shift * count), -0.5, line.offs);
    let of_more = fma(fma(more, line.power, shift * line.codes), -0.5, line.along);
    let better = fma(shift, of_shift, more * of_more) > 0.0;
    return select(vec2<f32>(trial.scale, trial.zero), vec2<f32>(scale, zero), better) + vec2<f32>(0.0);
}

// The scale of the best signed maximum, moved to least squares.
fn signed_scale(fit: Fit, section: u32) -> f32 {
    let k = fit_constants(section);
    var best = 0.0;
    var most = -1.0;
    for (var n = 0u; n < 3u; n++) {
        var ratio = 1.0;
        if fit.power[n] > 0.0 {
            ratio = divided(fit.along[n], fit.power[n]);
        }
        let taken = ratio * fit.along[n] * k.square[n];
        if taken > most {
            best = fit.trials[n].scale * ratio;
            most = taken;
        }
    }
    return stored(best) + 0.0;
}
