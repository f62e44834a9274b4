//! Inside the crate, modules use those below them only: read from the sources, by `crate::` and `super::` paths.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Which top-level module uses which, and where it says so.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// A source file: the path of its module, such as `kernel::scores`, and its text.
struct Source {
    module: Vec<String>,
    text: String,
}

fn sources(folder: &Path, module: &[String]) -> Vec<Source> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let inner = || module.iter().cloned().chain([name.clone()]).collect::<Vec<String>>();
        if path.is_dir() {
            found.extend(sources(&path, &inner()));
        } else if path.extension().is_some_and(|e| e == "rs") && !(module.is_empty() && name == "lib") {
            let module = if name == "mod" { module.to_vec() } else { inner() };
            found.push(Source { module, text: std::fs::read_to_string(&path).unwrap() });
        }
    }
    found
}

/// Without comments and without an inline module of tests, whose `super` is another. A `//` in a text would be taken for a
/// comment too, which hides nothing but what follows on its line.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The words at the start of what follows a path's `::`: one, or all of a list in braces.
fn heads(rest: &str) -> Vec<String> {
    let word = |text: &str| {
        let text = text.trim_start();
        if text.starts_with('*') {
            return "*".to_owned();
        }
        text[..text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len())].to_owned()
    };
    let Some(list) = rest.trim_start().strip_prefix('{') else { return vec![word(rest)] };
    let (mut depth, mut words, mut from) = (0, Vec::new(), 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                words.push(word(&list[from..at]));
                from = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The top-level names that a source refers to from the crate's root: after `crate::`, or after enough `super::` to get there.
fn roots(source: &Source) -> BTreeSet<String> {
    let code = code(&source.text);
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        found.extend(heads(&code[at + "crate::".len()..]));
    }
    let up = "super::".repeat(source.module.len());
    for (at, _) in code.match_indices(&up) {
        let whole = !code[..at].ends_with("super::");
        let rest = &code[at + up.len()..];
        if whole && !rest.starts_with("super::") {
            found.extend(heads(rest));
        }
    }
    found
}

fn graph(sources: &[Source]) -> Graph {
    let mut graph = Graph::new();
    for source in sources {
        let own = &source.module[0];
        let uses = graph.entry(own.clone()).or_default();
        for root in roots(source).into_iter().filter(|root| root != own) {
            uses.entry(root).or_insert_with(|| source.module.join("::"));
        }
    }
    graph
}

/// A circle of modules, if there is one, with the files that close it.
fn circle(graph: &Graph) -> Option<String> {
    fn walk(graph: &Graph, at: &str, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<String> {
        if let Some(start) = way.iter().position(|name| name == at) {
            let mut names = way[start..].to_vec();
            names.push(at.to_owned());
            let step = |pair: &[String]| format!("{} (in {})", pair[1], graph[&pair[0]][&pair[1]]);
            let steps: Vec<String> = names.windows(2).map(step).collect();
            return Some(format!("{} → {}", names[0], steps.join(" → ")));
        }
        if !done.insert(at.to_owned()) {
            return None;
        }
        way.push(at.to_owned());
        let found = graph.get(at).into_iter().flat_map(|uses| uses.keys()).find_map(|next| {
            let known = way.contains(next);
            if known || !done.contains(next) { walk(graph, next, way, done) } else { None }
        });
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|start| walk(graph, start, &mut Vec::new(), &mut done))
}

fn of_this_crate() -> Graph {
    graph(&sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &[]))
}

#[test]
fn modules_depend_downward_only() {
    let graph = of_this_crate();
    assert_eq!(circle(&graph), None);
    for (module, uses) in &graph {
        for (root, place) in uses {
            // A name from the crate's root could come from anywhere.
            assert!(
                graph.contains_key(root),
                "{place}: take `{root}` from the module that has it ({module})"
            );
        }
    }
}

#[test]
fn the_page_format_lies_below_kernels_and_codecs() {
    let graph = of_this_crate();
    let uses = |module: &str| graph[module].keys().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(uses("format"), ["error"]);
    assert!(uses("error").is_empty());
    for module in ["quant", "transform", "kernel", "codec", "spec"] {
        assert!(uses(module).contains(&"format"), "{module}");
    }
}

/// The two tests above are worth nothing if the reader sees too little.
#[test]
fn circles_are_found_however_they_are_written() {
    let source = |module: &str, text: &str| Source {
        module: module.split("::").map(str::to_owned).collect(),
        text: text.to_owned(),
    };
    let found = |text: &str| {
        let sources = [
            source("kernel::exact", text),
            source("codec", "use crate::kernel::Kernels;"),
            source("format", "use std::ops::Range;"),
        ];
        circle(&graph(&sources))
    };
    for text in [
        "use crate::codec::Query;",
        "use crate::{format::Side, codec::Query};",
        "use crate::{format::{Side, Span}, codec};",
        "fn f(x: &crate::codec::Query) {}",
        "($x:expr) => { $crate::codec::Query::new() };",
        "use super::super::codec::Query;",
    ] {
        assert!(found(text).is_some_and(|circle| circle.contains("kernel::exact")), "{text}");
    }
    for text in
        ["use crate::format::Side;", "use super::codec::Query;", "/// As [`crate::codec::Query`].", ""]
    {
        assert_eq!(found(text), None, "{text}");
    }
    let all = graph(&[source("pack", "use super::*;\n#[cfg(test)]\nmod tests {\n    use super::codec;\n}")]);
    assert_eq!(all["pack"].keys().collect::<Vec<_>>(), ["*"]);
    let three = [source("a", "crate::b::x"), source("b", "crate::c::x"), source("c", "crate::a::x")];
    assert!(circle(&graph(&three)).is_some());
}

/// The first line of a text that maps by a closure over a tier's vectors.
fn vectors_in_a_closure(text: &str) -> Option<&str> {
    text.lines().find(|line| line.split(".map(|").skip(1).any(|closure| closure.contains("S::")))
}

/// A closure that the compiler does not inline is compiled without the tier's instructions: with AVX2 attention once took 2.7 times as
/// long for one.
#[test]
fn kernels_map_no_vectors_by_closures() {
    for Source { module, text } in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &[]) {
        assert_eq!(vectors_in_a_closure(&code(&text)), None, "in {}", module.join("::"));
    }
    assert!(vectors_in_a_closure("S::narrow(products.map(|x| S::round(x)))").is_some());
    assert!(vectors_in_a_closure("S::reduce4_max(tops).map(|top| step(top, 1))").is_none());
}
