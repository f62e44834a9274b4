//! The report in a real browser: what it renders, on a wide screen and on a phone.
//!
//! The browser is Chromium (`cargo xtask test` installs it; `CHROMIUM` names another). Where xtask could not install it, it
//! says so by `KVANT_WITHOUT_BROWSER=1`, and what it says stands in its table.

use kvant_eval::divergence::{DecodeSpeed, Divergence, DivergenceRow, FastPath, Mode};
use kvant_eval::html::{MemoryNeed, MemoryPage, MemoryPoint, Page, SpeedPoint};
use kvant_eval::layers::{CacheView, LayerErrors, LayerStatistics, LayerViews};
use kvant_eval::{Machine, Score, Setting, Windows};
use std::fs;
use std::process::Command;

const SPECS: [(&str, f64, f64); 7] = [
    ("f16", 16.0, 3e-7),
    ("int8", 8.5, 7e-6),
    ("k8v4", 6.5, 4e-4),
    ("int4", 4.5, 0.0017),
    ("q4_0", 4.5, 0.012),
    ("tq3", 3.25, 0.02),
    ("<b>&\"odd\"</b>", 4.45, 0.0031),
];

fn rows() -> Vec<DivergenceRow> {
    let windows = Windows::of_ids(&[], &[1; 64], 64, 1, Score::All).unwrap();
    let setting = Setting {
        model: "folder/A model with a rather long name.Q4_1.gguf".to_owned(),
        architecture: "llama".to_owned(),
        text: "some text".to_owned(),
        activations: "f32".to_owned(),
        threads: 2,
        version: "0".to_owned(),
        machine: Machine::this(),
    };
    let row = |(spec, bits, kl): (&str, f64, f64)| {
        let none = Divergence::default();
        let mut row = DivergenceRow::new(spec.to_owned(), Mode::Strict, &none, &windows, setting.clone());
        (row.bits_per_value, row.kl_mean) = (Some(bits), kl);
        row.fast = Some(FastPath::new(&none, &none));
        row.decode = Some(DecodeSpeed { decode_ms: 1.0, decode_vs_f16: 16.0 / bits, decode_depth: 64 });
        row
    };
    SPECS.map(row).to_vec()
}

fn layers() -> LayerViews {
    let statistics = |layer| LayerStatistics {
        layer,
        key_kurtosis: 9.0,
        key_kurtosis_rotated: 1.0,
        value_kurtosis: 1.0,
        value_kurtosis_rotated: 0.1,
        loud_channels: Vec::new(),
        score_scale: 30.0,
    };
    let errors = |layer: usize, size: f64| LayerErrors {
        score_error: size * (1.0 + layer as f64),
        output_error: size,
        ..LayerErrors::default()
    };
    let view = |(spec, _, kl): (&str, f64, f64)| CacheView {
        spec: spec.to_owned(),
        layers: (0..24).map(|layer| errors(layer, kl)).collect(),
    };
    LayerViews { layers: (0..24).map(statistics).collect(), caches: SPECS.map(view).to_vec() }
}

fn page() -> String {
    let speed: Vec<SpeedPoint> = SPECS
        .iter()
        .flat_map(|(spec, bits, _)| {
            [128, 512, 2048].map(|depth| SpeedPoint {
                spec: (*spec).to_owned(),
                depth,
                ms: 4.0 + bits * depth as f64 / 4e3,
            })
        })
        .collect();
    Page { rows: &rows(), layers: Some(&layers()), speed: &speed }.to_html()
}

fn memory_page() -> String {
    let need = |(spec, bits, _): (&str, f64, f64)| {
        let point = |tokens: usize| {
            let cache = (tokens as f64 * bits * 4096.0) as u64;
            MemoryPoint { tokens, weights: 3 << 30, cache, peak: (3 << 30) + cache + (100 << 20) }
        };
        MemoryNeed {
            spec: spec.to_owned(),
            points: [4096, 32_768, 131_072].map(point).to_vec(),
            longest: (bits < 10.0).then_some(131_072),
        }
    };
    let facts = [("memory", "8 GiB".to_owned())];
    let needs = SPECS.map(need);
    MemoryPage { model: "folder/model.gguf", facts: &facts, memory: 8 << 30, needs: &needs }.to_html()
}

#[test]
fn memory_is_shown_with_what_there_is() {
    let html = memory_page();
    for forbidden in ["http:", "https:", "<script", "<link", "@import", "url(", "<b>&", "folder/"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    assert_eq!(html.matches("<polyline").count(), SPECS.len());
    assert!(html.contains("8.0 GiB there are") && html.contains("<td>f16</td><td>none</td>"), "{html}");
    // 4096 tokens of f16 take 256 MiB; 131,072 take 8 GiB, which is too much beside the weights.
    assert!(html.contains("keys and values 256.0 MiB, rest 100.0 MiB\">3.3 GiB</td>"), "{html}");
    assert!(html.contains("class=\"soft\" title=\"weights 3.0 GiB, keys and values 8.0 GiB"), "{html}");
}

#[test]
fn the_file_is_complete_and_fetches_nothing() {
    let html = page();
    for forbidden in ["http:", "https:", "<script", "<link", "@import", "url(", "<b>&"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    assert_eq!(html.matches("<svg").count(), 4);
    assert_eq!(html.matches("<tr>").count(), 1 + SPECS.len());
    assert!(html.contains("&lt;b&gt;&amp;&quot;odd&quot;&lt;/b&gt;"));
    assert!(!html.contains("folder/"), "folders of a machine are nobody's business");
    let bare = Page { rows: &rows(), layers: None, speed: &[] }.to_html();
    assert_eq!(bare.matches("<svg").count(), 1);
}

/// Asks the page about itself and puts the answer where it can be read from outside.
const PROBE: &str = r#"<script>
const faults = [];
addEventListener('error', event => faults.push(String(event.message)));
addEventListener('load', () => {
  const box = element => { const r = element.getBoundingClientRect(); return [Math.round(r.width), Math.round(r.height)]; };
  const found = {
    faults, overflow: document.documentElement.scrollWidth - innerWidth, width: innerWidth,
    svgs: [...document.querySelectorAll('svg')].map(box),
    dots: document.querySelectorAll('svg .dot').length,
    labels: [...document.querySelectorAll('svg')][0].querySelectorAll('text.name').length,
    cells: document.querySelectorAll('svg rect').length,
    ground: getComputedStyle(document.body).backgroundColor,
  };
  document.title = JSON.stringify(found);
});
</script></head>"#;

/// What the page says about itself in a window of this width.
fn rendered(html: &str, width: u32) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    // The page as it is, in a frame of the width wanted: windows have a least width, frames have not.
    fs::write(folder.path().join("page.html"), html.replace("</head>", PROBE)).unwrap();
    let frame = format!(
        "<!doctype html><iframe src=\"page.html\" style=\"border:0;width:{width}px;height:4000px\"></iframe>\
         <script>onload = () => setTimeout(() => {{ document.body.textContent = frames[0].document.title; }}, 200);</script>"
    );
    let path = folder.path().join("frame.html");
    fs::write(&path, frame).unwrap();
    let browser = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    let output = Command::new(&browser)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--allow-file-access-from-files",
        ])
        .args([
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            "--dump-dom",
            "--window-size=1400,4000",
        ])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", path.display()))
        .output()
        .unwrap_or_else(|e| {
            panic!("{browser}: {e}; `cargo xtask test` installs Chromium, and CHROMIUM names another")
        });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("CONSOLE"), "the page complains: {said}");
    let dom = String::from_utf8_lossy(&output.stdout);
    let (start, end) = (dom.find('{'), dom.rfind('}'));
    let (Some(start), Some(end)) = (start, end) else { panic!("no answer: {dom}\n{said}") };
    serde_json::from_str(&dom[start..=end]).unwrap_or_else(|e| panic!("{e}: {dom}"))
}

#[test]
fn a_browser_shows_it_on_a_wide_screen_and_on_a_phone() {
    if std::env::var_os("KVANT_WITHOUT_BROWSER").is_some_and(|value| value == "1") {
        eprintln!("NOT TESTED: there is no browser here, as cargo xtask says");
        return;
    }
    for width in [1200, 360] {
        let found = rendered(&page(), width);
        shows(&found, width, 4);
        assert_eq!((&found["dots"], &found["labels"]), (&SPECS.len().into(), &SPECS.len().into()), "{found}");
        assert_eq!(found["cells"], 2 * 24 * SPECS.len());
        let found = rendered(&memory_page(), width);
        shows(&found, width, 1);
        assert_eq!(found["labels"], SPECS.len() + 1, "every cache and the line: {found}");
    }
}

/// Nothing is wrong with a page of so many pictures.
fn shows(found: &serde_json::Value, width: u32, pictures: usize) {
    assert_eq!((&found["width"], &found["faults"]), (&width.into(), &serde_json::json!([])), "{found}");
    assert_eq!(found["overflow"], 0, "nothing sticks out at {width}: {found}");
    let svgs = found["svgs"].as_array().unwrap();
    assert_eq!(svgs.len(), pictures);
    for size in svgs {
        assert!(size[0].as_u64().unwrap() > 300 && size[1].as_u64().unwrap() > 100, "{found}");
    }
}
