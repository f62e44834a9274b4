//! Which rows a table shows, and in which order.

use super::cell;
use serde_json::{Map, Value};

/// The rows of a table: those that its `where` asks for; with `merge`, those that share a key made one; with `sort`, the
/// least first.
pub fn rows(all: &Value, table: &Value) -> Result<Vec<Value>, String> {
    let none = Map::new();
    let conditions = table["where"].as_object().unwrap_or(&none);
    let fitting = all.as_array().into_iter().flatten().filter(|row| fits(row, conditions));
    let mut rows = match &table["merge"] {
        Value::Null => fitting.cloned().collect(),
        merge => merged(fitting, merge)?,
    };
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
