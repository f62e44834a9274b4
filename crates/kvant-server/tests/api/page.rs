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
    browser.until("at('figures').textContent.includes('kept for prompts to come')");
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
    assert_eq!(browser.complaints, Vec::<String>::new());
}
