//! What came of a task, as a page: answers by context, and every cache against the usual one.

use super::curves::{Curve, Meaning};
use super::{END, beginning, curves, escaped, file_name, section, write_facts};
use crate::tasks::TaskRow;
use std::fmt::Write;

/// Where lines begin, how wide all of them are, and how high one is.
const LEFT: f64 = 230.0;
const WIDTH: f64 = 500.0;
const LINE: f64 = 22.0;

/// The results of one task.
#[derive(Debug, Clone, Copy)]
pub struct TaskPage<'p> {
    /// A row for every cache and context.
    pub rows: &'p [TaskRow],
}

impl TaskPage<'_> {
    /// The whole file.
    pub fn to_html(&self) -> String {
        let (task, title) = match self.rows.first() {
            Some(row) => (row.task, file_name(&row.setting.model)),
            None => ("a task", "caches".to_owned()),
        };
        let mut out = beginning(&title, &format!("{task}: what caches change in the answers of {title}"));
        if let Some(row) = self.rows.first() {
            let setting = &row.setting;
            let machine = &setting.machine;
            let facts = [
                ("model", format!("{title} ({})", setting.architecture)),
                ("cases from", file_name(&setting.text)),
                ("mode", format!("{}, activations {}", row.mode, setting.activations)),
                ("machine", format!("{}, {} cores, {} threads", machine.cpu, machine.cores, setting.threads)),
                ("kvant", setting.version.clone()),
            ];
            write_facts(&mut out, &facts);
        }
        section(&mut out, "Right answers against context", "Percent of the cases.", self.by_context());
        let against = self.rows.iter().find_map(|row| row.paired.as_ref()).map(|paired| &paired.against);
        let words = against.map_or(String::new(), |against| {
            format!(
                "Points are compared with {}, case by case; 95 % of resampled documents lie in the interval, and p is that of \
                 McNemar's exact test.",
                escaped(against)
            )
        });
        section(&mut out, "Differences", &words, self.differences());
        section(&mut out, "All figures", "", self.table());
        out.push_str(END);
        out
    }

    fn by_context(&self) -> Option<String> {
        let mut all: Vec<Curve<'_>> = Vec::new();
        for row in self.rows {
            let point = (row.context?, 100.0 * row.right);
            match all.iter_mut().find(|curve| curve.name == row.spec) {
                Some(curve) => curve.points.push(point),
                None => all.push(Curve { name: &row.spec, points: vec![point] }),
            }
        }
        curves::svg(&all, &Meaning { label: "right answers against context", unit: "% right", mark: None })
    }

    /// A line for every difference, with its interval, around that of no difference.
    fn differences(&self) -> Option<String> {
        let paired: Vec<_> = self.rows.iter().filter_map(|row| Some((row, row.paired.as_ref()?))).collect();
        let most = paired
            .iter()
            .flat_map(|(_, paired)| [paired.difference_low, paired.difference_high, paired.difference])
            .fold(0.0_f64, |most, difference| most.max(difference.abs()));
        if paired.is_empty() {
            return None;
        }
        let place = |difference: f64| LEFT + WIDTH * (0.5 + 0.48 * difference / most.max(0.01));
        let height = LINE * (paired.len() as f64 + 1.0);
        let mut out = format!(
            "<svg class=\"wide\" viewBox=\"0 0 760 {height}\" role=\"img\" aria-label=\"differences with their intervals\">\n\
             <line class=\"mark\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"4\" y2=\"{1:.1}\"/>\n",
            place(0.0),
            height - LINE / 2.0
        );
        for (number, (row, paired)) in paired.iter().enumerate() {
            let y = LINE * (number as f64 + 0.7);
            let context = row.context.map_or(String::new(), |context| format!(" at {context}"));
            let _ = writeln!(
                out,
                "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}{context}</text>\
                 <line class=\"base\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\" style=\"fill:var(--s0)\"><title>{:+.1} points</title></circle>",
                LEFT - 8.0,
                y + 4.0,
                escaped(&row.spec),
                place(paired.difference_low),
                place(paired.difference_high),
                place(paired.difference),
                100.0 * paired.difference
            );
        }
        out.push_str("</svg>\n");
        Some(out)
    }

    fn table(&self) -> Option<String> {
        if self.rows.is_empty() {
            return None;
        }
        let mut out = String::from("<table>\n<thead><tr>");
        for head in [
            "cache",
            "context",
            "cases",
            "right %",
            "points",
            "interval",
            "p",
            "gained",
            "lost",
            "as exact %",
            "valid %",
        ] {
            let _ = write!(out, "<th>{head}</th>");
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        let none = || "–".to_owned();
        for row in self.rows {
            let percent = |share: f64| format!("{:.1}", 100.0 * share);
            let mut cells = vec![
                escaped(&row.spec),
                row.context.map_or_else(none, |context| context.to_string()),
                row.cases.to_string(),
                percent(row.right),
            ];
            match &row.paired {
                Some(paired) => cells.extend([
                    format!("{:+.1}", 100.0 * paired.difference),
                    format!(
                        "{:+.1} to {:+.1}",
                        100.0 * paired.difference_low,
                        100.0 * paired.difference_high
                    ),
                    format!("{:.2}", paired.p_value),
                    paired.gained.to_string(),
                    paired.lost.to_string(),
                ]),
                None => cells.extend((0..5).map(|_| none())),
            }
            cells.extend([percent(row.same), row.valid.map_or_else(none, percent)]);
            out.push_str("<tr>");
            for cell in cells {
                let _ = write!(out, "<td>{cell}</td>");
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody>\n</table>\n");
        Some(out)
    }
}
