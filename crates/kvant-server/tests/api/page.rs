//! The page, in a real browser.

use crate::browser::Browser;
use crate::support::*;
use kvant_engine::scheduler::SchedulerOptions;
use kvant_server::Keys;

#[test]
fn the_page_comes_without_a_key_and_may_ask_this_server_alone() {
    let keyed = kvant_server::ServerOptions { keys: Keys::new(["sesame"]), ..options() };
    let server = start(keyed, SchedulerOptions::default());
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("text/html") && page.head.contains("connect-src 'self'"), "{}", page.head);
    assert!(!page.body.contains("sesame"));
    server.get("/v1/kv").fails(401, "API key");
}

#[test]
fn people_send_stop_reload_and_are_told_what_is_wrong() {
    if !Browser::is_here() {
        return;
    }
    let server = usual();
    let mut browser = Browser::open(&format!("http://{}/", server.address), (1280, 900));
    browser.until("at('model').textContent.includes('tiny, up to 480 tokens')");

    // An answer comes in pieces, and its note says what the cache did.
    browser.value(
        "at('max_tokens').value = 12; at('text').value = 'the rain in spain'; at('ask').requestSubmit()",
    );
    browser.until("document.querySelector('.turn.assistant small')?.textContent.includes('tokens in')");
    assert_eq!(browser.value("document.querySelector('.turn.user .said').textContent"), "the rain in spain");
    assert_eq!(browser.value("at('stop').hidden && !at('send').hidden && at('text').value === ''"), true);
    browser.until("at('figures').textContent.includes('prefix cache')");
    assert_eq!(browser.value("at('cache').open"), true, "a desk has room for it");
    // A short talk is told to be exact, and what a long one will take; nothing is larger than it would be without compression.
    browser.until("at('figures').textContent.includes('480 tokens would take')");
    assert_eq!(browser.value("at('sequences').textContent.includes('f16 would take') && at('sequences').textContent.includes('exact')"), false);
    browser.until("document.querySelector('#speed polyline')?.getAttribute('points').length > 0");

    // However much was said, the page itself does not scroll: the conversation does.
    browser.value("for (let i = 0; i < 60; i++) at('log').append(turn({role: 'user', content: 'more'}))");
    assert_eq!(browser.value("document.documentElement.scrollHeight <= innerHeight"), true);
    assert_eq!(browser.value("at('log').scrollHeight > at('log').clientHeight"), true);

    // What is stopped stays as far as it came.
    browser.value("at('max_tokens').value = ''; at('text').value = 'again'; at('ask').requestSubmit(); at('stop').click()");
    browser.until("document.querySelector('.turn:last-child small')?.textContent === 'stopped'");

    // A conversation survives the page.
    browser.call("Page.reload", serde_json::json!({}));
    browser.until("document.readyState === 'complete' && document.querySelectorAll('.turn').length === 4");
    assert_eq!(browser.value("document.querySelectorAll('#conversations li').length"), 1);

    // A refusal is shown, and what was typed is still there.
    browser
        .value("at('temperature').value = '-1'; at('text').value = 'once more'; at('ask').requestSubmit()");
    browser.until("!at('error').hidden && at('error').textContent.includes('temperature')");
    assert_eq!(browser.value("at('text').value"), "once more");
    assert_eq!(browser.value("document.querySelectorAll('.turn').length"), 4);

    // Another conversation, and the end of the first.
    browser.value("at('temperature').value = ''; at('new').click()");
    assert_eq!(browser.value("document.querySelectorAll('.turn').length"), 0);
    browser.value("document.querySelector('#conversations li button:last-child').click()");
    browser.until("document.querySelectorAll('#conversations li').length === 0");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn an_idle_server_generates_nothing_per_second() {
    if !Browser::is_here() {
        return;
    }
    let server = usual();
    let mut browser = Browser::open(&format!("http://{}/", server.address), (1280, 900));
    browser.until("history.length > 2");
    assert_eq!(browser.value("at('pace').textContent"), "no tokens in the last minute");
}

#[test]
fn answers_are_shown_as_markdown_and_never_as_html() {
    if !Browser::is_here() {
        return;
    }
    let server = usual();
    let mut browser = Browser::open(&format!("http://{}/", server.address), (1280, 900));
    browser.until("at('model').textContent.includes('tiny')");
    browser.value(
        r#"at('log').replaceChildren(turn({role: 'assistant', content:
            'A **bold** word, `code`, [a link](https://example.org/) and [a trap](javascript:alert(1)).\n\n' +
            '- one\n- two\n\n```js\nlet x = 1 < 2;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n' +
            '<img src=x onerror=alert(1)><script>alert(2)</script> &amp; done'}))"#,
    );
    let count = |browser: &mut Browser, selector: &str| {
        browser.value(&format!("document.querySelectorAll('#log {selector}').length"))
    };
    for (selector, expected) in [
        ("strong", 1),
        ("li", 2),
        ("pre code", 1),
        ("td", 2),
        ("a", 1),
        ("img", 0),
        ("script", 0),
        (".copy", 1),
    ] {
        assert_eq!(count(&mut browser, selector), expected, "{selector}");
    }
    assert_eq!(browser.value("document.querySelector('#log pre code').textContent"), "let x = 1 < 2;");
    let text = browser.value("document.querySelector('#log .said').textContent");
    let text = text.as_str().unwrap();
    assert!(text.contains("<img src=x onerror=alert(1)>") && text.contains("javascript:alert"), "{text}");
    assert!(text.contains("A bold word, code, a link and "), "{text}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn what_was_said_can_be_said_and_answered_again() {
    if !Browser::is_here() {
        return;
    }
    let server = usual();
    let mut browser = Browser::open(&format!("http://{}/", server.address), (1280, 900));
    browser.until("at('model').textContent.includes('tiny')");
    let note =
        "document.querySelector('.turn:last-child small')?.textContent.includes('tokens in') && !running";
    browser.value("at('max_tokens').value = 8; at('text').value = 'first words'; at('ask').requestSubmit()");
    browser.until(note);
    // Another answer to the same words: both stay.
    browser.value("[...document.querySelectorAll('.turn.assistant button')].find((b) => b.textContent === 'Regenerate').click()");
    browser.until(&format!(
        "{note} && document.querySelector('.turn.assistant .tools').textContent.includes('2 of 2')"
    ));
    // Other words in place of the first: a branch of its own, which the old one is a step away from.
    browser.value(
        "[...document.querySelectorAll('.turn.user button')].find((b) => b.textContent === 'Edit').click()",
    );
    browser.value("const box = document.querySelector('.edit textarea'); box.value = 'other words'; box.form.requestSubmit()");
    browser.until(&format!(
        "{note} && document.querySelector('.turn.user .said').textContent === 'other words'"
    ));
    assert_eq!(browser.value("document.querySelectorAll('.turn').length"), 2);
    browser.value("document.querySelector('.turn.user button[aria-label=\"Previous version\"]').click()");
    browser.until("document.querySelector('.turn.user .said').textContent === 'first words'");
    assert_eq!(
        browser.value("document.querySelector('.turn.assistant .tools').textContent.includes('2 of 2')"),
        true
    );
    // All of it survives the page.
    browser.call("Page.reload", serde_json::json!({}));
    browser.until("document.readyState === 'complete' && document.querySelectorAll('.turn').length === 2");
    browser.value("document.querySelector('.turn.user button[aria-label=\"Next version\"]').click()");
    browser.until("document.querySelector('.turn.user .said').textContent === 'other words'");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_phone_shows_it_without_scrolling_sideways() {
    if !Browser::is_here() {
        return;
    }
    let server = usual();
    let mut browser = Browser::open(&format!("http://{}/", server.address), (800, 900));
    let phone = serde_json::json!({"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", phone);
    browser.until("innerWidth === 360");
    assert_eq!(browser.value("document.documentElement.scrollWidth"), 360);
    // The talk has the screen: the panel about the cache is one line until somebody opens it.
    browser.call("Page.reload", serde_json::json!({}));
    browser.until("document.readyState === 'complete' && at('model').textContent.includes('tiny')");
    assert_eq!(browser.value("at('cache').open"), false);
    let height = |browser: &mut Browser| browser.value("at('cache').clientHeight").as_f64().unwrap();
    let folded = height(&mut browser);
    browser.value("at('cache').querySelector('summary').click()");
    browser.until("at('cache').open");
    assert!(folded < 60.0 && height(&mut browser) > 2.0 * folded, "{folded} pixels when folded");
    assert_eq!(browser.value("document.documentElement.scrollWidth"), 360);
    assert_eq!(browser.complaints, Vec::<String>::new());
}
