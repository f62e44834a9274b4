//! Loops of kernels that are written out before a driver sees them.
//!
//! Not every driver unrolls a loop around loads, and one that does not waits for each load before it asks for the next. So hot
//! loops are repeated in the text: the lines between `//@ i COUNT` and `//@` stand there once for each number below the count,
//! with `$i` replaced by it.

/// The text with its loops written out; `counts` says how often by name.
pub(crate) fn unrolled(text: &str, counts: &[(&str, usize)]) -> String {
    let mut lines = text.lines();
    let mut out = String::with_capacity(2 * text.len());
    while let Some(line) = lines.next() {
        match line.trim().strip_prefix("//@ ") {
            None => {
                out += line;
                out.push('\n');
            }
            Some(head) => {
                let (variable, count) = head.split_once(' ').expect("a loop has a variable and a count");
                let named = counts.iter().find(|(name, _)| *name == count).map(|(_, count)| *count);
                let times =
                    named.unwrap_or_else(|| count.parse().expect("a count has a name or is a number"));
                let body = body(&mut lines);
                for number in 0..times {
                    let one = body.replace(&format!("${variable}"), &number.to_string());
                    out += &unrolled(&one, counts);
                }
            }
        }
    }
    out
}

/// The lines up to the end of a loop, with the loops in it.
fn body<'a>(lines: &mut impl Iterator<Item = &'a str>) -> String {
    let (mut depth, mut body) = (0, String::new());
    for line in lines {
        match line.trim() {
            "//@" if depth == 0 => break,
            "//@" => depth -= 1,
            other => depth += usize::from(other.starts_with("//@ ")),
        }
        body += line;
        body.push('\n');
    }
    body
}

#[cfg(test)]
mod tests {
    use super::unrolled;

    #[test]
    fn loops_are_written_out_inside_each_other() {
        let text = "a\n//@ r R\nb$r\n  //@ t 2\nc$r_$t\n  //@\n//@\nd\n";
        assert_eq!(unrolled(text, &[("R", 2)]), "a\nb0\nc0_0\nc0_1\nb1\nc1_0\nc1_1\nd\n");
        assert_eq!(unrolled("x\n//@ i N\ny\n//@", &[("N", 0)]), "x\n");
    }
}
