//! Which rows a table shows, and in which order.

use super::cell;
use serde_json::{Map, Value};

/// The rows of a table: those that its `where` asks for; with `runs`, runs of the same thing made one; with `merge`, those
/// that share a key made one; with `sort`, the least first.
pub fn rows(all: &Value, table: &Value) -> Result<Vec<Value>, String> {
    let none = Map::new();
    let conditions = table["where"].as_object().unwrap_or(&none);
    let fitting = all.as_array().into_iter().flatten().filter(|row| fits(row, conditions)).cloned().collect();
    let mut rows: Vec<Value> = match table["runs"].as_array() {
        None => fitting,
        Some(same) => medians(&fitting, &same.iter().filter_map(Value::as_str).collect::<Vec<_>>())?,
    };
    if !table["merge"].is_null() {
        rows = merged(rows.iter(), &table["merge"])?;
    }
    if let Some(key) = table["sort"].as_str() {
        // What has no figure comes last.
        let figure = |row: &Value| row[key].as_f64().unwrap_or(f64::INFINITY);
        rows.sort_by(|a, b| figure(a).total_cmp(&figure(b)));
    }
    Ok(rows)
}

/// Whether a row has all the values it must have.
fn fits(row: &Value, conditions: &Map<String, Value>) -> bool {
    conditions.iter().all(|(key, wanted)| match wanted {
        Value::Array(several) => several.contains(&row[key]),
        one => row[key] == *one,
    })
}

/// One row for all runs that have the same values at the keys `same`: the median of every number, the least and the
/// greatest as `KEY low` and `KEY high`, and how many runs there were as `runs`. Texts that differ are left out.
fn medians(rows: &[Value], same: &[&str]) -> Result<Vec<Value>, String> {
    if same.is_empty() {
        return Err("`runs` needs the keys that runs of the same thing share".to_owned());
    }
    let mut groups: Vec<Vec<&Value>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| same.iter().all(|key| group[0][*key] == row[*key])) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    Ok(groups.iter().map(|group| median_row(group)).collect())
}

fn median_row(group: &[&Value]) -> Value {
    let mut out = Map::new();
    for key in group.iter().filter_map(|row| row.as_object()).flat_map(Map::keys) {
        if out.contains_key(key) {
            continue;
        }
        let values: Vec<&Value> =
            group.iter().map(|row| &row[key]).filter(|value| !value.is_null()).collect();
        let mut numbers: Vec<f64> = values.iter().filter_map(|value| value.as_f64()).collect();
        if numbers.len() == values.len() {
            numbers.sort_by(f64::total_cmp);
            let (low, high) = (numbers[0], numbers[numbers.len() - 1]);
            let median = (numbers[(numbers.len() - 1) / 2] + numbers[numbers.len() / 2]) / 2.0;
            let median = if low == high { values[0].clone() } else { Value::from(median) };
            out.insert(key.clone(), median);
            out.insert(format!("{key} low"), low.into());
            out.insert(format!("{key} high"), high.into());
        } else if values.iter().all(|value| *value == values[0]) {
            out.insert(key.clone(), values[0].clone());
        }
    }
    out.insert("runs".to_owned(), group.len().into());
    Value::Object(out)
}

/// One row for all that have the same value at the key `by`. What each of them says is found under `TAG KEY`, the tag being
/// a text filled from that row: `strict kl_mean`.
fn merged<'r>(rows: impl Iterator<Item = &'r Value>, merge: &Value) -> Result<Vec<Value>, String> {
    let (Some(by), Some(tag)) = (merge["by"].as_str(), merge["tag"].as_str()) else {
        return Err("`merge` needs a key `by` and a text `tag`".to_owned());
    };
    let mut merged: Vec<Value> = Vec::new();
    for row in rows {
        let tag = cell::filled(tag, row)?;
        let place = merged.iter().position(|known| known[by] == row[by]).unwrap_or(merged.len());
        if place == merged.len() {
            merged.push(Value::Object([(by.to_owned(), row[by].clone())].into_iter().collect()));
        }
        for (key, value) in row.as_object().into_iter().flatten().filter(|(key, _)| *key != by) {
            let known = &mut merged[place][format!("{tag} {key}")];
            if !known.is_null() {
                return Err(format!("two rows are `{tag}` of the same {by}, {}", row[by]));
            }
            *known = value.clone();
        }
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn figures() -> Value {
        json!([
            {"spec": "a", "mode": "x", "kl": 3.0}, {"spec": "b", "mode": "x", "kl": 1.0},
            {"spec": "a", "mode": "y", "kl": 2.0}, {"spec": "c", "mode": "y", "kl": 0.5}
        ])
    }

    #[test]
    fn rows_fit_and_are_sorted() {
        let specs = |table: Value| -> Vec<String> {
            let rows = rows(&figures(), &table).unwrap();
            rows.iter().map(|row| row["spec"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(specs(json!({})), ["a", "b", "a", "c"]);
        assert_eq!(specs(json!({"sort": "kl"})), ["c", "b", "a", "a"]);
        assert_eq!(specs(json!({"where": {"mode": "x"}, "sort": "kl"})), ["b", "a"]);
        assert_eq!(specs(json!({"where": {"spec": ["b", "c"]}})), ["b", "c"]);
    }

    #[test]
    fn runs_of_the_same_thing_become_a_median_with_its_spread() {
        let figures = json!([
            {"spec": "a", "ms": 3.0, "run": "x"}, {"spec": "b", "ms": 7, "only": 1.5}, {"spec": "a", "ms": 1.0, "run": "y"},
            {"spec": "a", "ms": 2.5, "run": "z"}, {"spec": "b", "ms": 7}
        ]);
        let found = rows(&figures, &json!({"runs": ["spec"]})).unwrap();
        assert_eq!(found[0], json!({"spec": "a", "ms": 2.5, "ms low": 1.0, "ms high": 3.0, "runs": 3}));
        assert_eq!(
            (&found[1]["ms"], &found[1]["only"], &found[1]["runs"]),
            (&json!(7), &json!(1.5), &json!(2))
        );
        assert!(rows(&figures, &json!({"runs": []})).unwrap_err().contains("share"));
    }

    #[test]
    fn rows_of_one_key_become_one() {
        let table = json!({"merge": {"by": "spec", "tag": "{mode}"}, "sort": "x kl"});
        let found = rows(&figures(), &table).unwrap();
        assert_eq!(found[1], json!({"spec": "a", "x mode": "x", "x kl": 3.0, "y mode": "y", "y kl": 2.0}));
        assert_eq!((&found[0]["spec"], &found[2]["spec"]), (&json!("b"), &json!("c")));
        for (wrong, what) in
            [(json!({"by": "spec"}), "tag"), (json!({"by": "spec", "tag": "same"}), "two rows")]
        {
            assert!(rows(&figures(), &json!({"merge": wrong})).unwrap_err().contains(what));
        }
    }
}
