//! Stop strings over a stream of text.

/// Finds the first of several stop strings in text that arrives in pieces, and holds back no more than it must.
///
/// The text ends where a stop string is first complete; of several complete at one place the longest counts, so
/// the result does not depend on how the text was cut into pieces. Text is held back only while it is the
/// beginning of a stop string.
///
/// ```
/// use kvant_engine::StopMatcher;
///
/// let mut stop = StopMatcher::new(["\nUser:"]);
/// assert_eq!(stop.push("Hi!\nUs").text, "Hi!");
/// assert_eq!(stop.push("eful: ").text, "\nUseful: ");
/// let end = stop.push("yes\nUser: and");
/// assert_eq!((end.text.as_str(), end.stopped_by), ("yes", Some(0)));
/// ```
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// The end of the text, which may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

/// What a piece of text came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopStep {
    /// The text that is safe to show: the stop string is not part of it.
    pub text: String,
    /// The stop string that ended the text, by its place in the list.
    pub stopped_by: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`; empty strings among them never match.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Self {
        Self { stops: stops.into_iter().map(Into::into).collect(), held: String::new(), stopped: false }
    }

    /// Takes the next piece. After a stop, further text is dropped.
    pub fn push(&mut self, piece: &str) -> StopStep {
        if self.stopped {
            return StopStep { text: String::new(), stopped_by: None };
        }
        let seen = self.held.len();
        self.held.push_str(piece);
        if let Some((index, start)) = self.first_complete(seen) {
            self.stopped = true;
            self.held.truncate(start);
            return StopStep { text: std::mem::take(&mut self.held), stopped_by: Some(index) };
        }
        let rest = self.held.split_off(self.held.len() - self.possible_beginning());
        StopStep { text: std::mem::replace(&mut self.held, rest), stopped_by: None }
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that is complete first after the `seen` bytes that hold none, and where it starts.
    fn first_complete(&self, seen: usize) -> Option<(usize, usize)> {
        let ends = self.held[seen..].char_indices().map(|(at, c)| seen + at + c.len_utf8());
        ends.into_iter().find_map(|end| {
            let complete = |stop: &String| !stop.is_empty() && self.held[..end].ends_with(stop.as_str());
            let found = self.stops.iter().enumerate().filter(|(_, stop)| complete(stop));
            // The first of equals, where a list holds one string twice.
            found.rev().max_by_key(|(_, stop)| stop.len()).map(|(index, stop)| (index, end - stop.len()))
        })
    }

    /// Bytes at the end of the held text that begin some stop string.
    fn possible_beginning(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let is_beginning =
            |tail: &str| self.stops.iter().any(|stop| stop.len() > tail.len() && stop.starts_with(tail));
        let starts = self.held.char_indices().map(|(at, _)| at).filter(|at| self.held.len() - at < longest);
        starts.into_iter().find(|&at| is_beginning(&self.held[at..])).map_or(0, |at| self.held.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use super::StopMatcher;
    use proptest::prelude::*;

    /// The text up to the stop, and which one, by looking at every end in turn.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let Some(whole) = text.get(..end) else { continue };
            let mut best: Option<usize> = None;
            for (index, stop) in stops.iter().enumerate() {
                if !stop.is_empty()
                    && whole.ends_with(stop.as_str())
                    && best.is_none_or(|b| stop.len() > stops[b].len())
                {
                    best = Some(index);
                }
            }
            if let Some(index) = best {
                return (whole[..end - stops[index].len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_naive_result(
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..12),
        ) {
            let mut matcher = StopMatcher::new(stops.clone());
            let (mut text, mut stopped_by) = (String::new(), None);
            let mut pushed = String::new();
            for piece in &pieces {
                let step = matcher.push(piece);
                text.push_str(&step.text);
                stopped_by = stopped_by.or(step.stopped_by);
                pushed.push_str(piece);
                if stopped_by.is_none() {
                    // Nothing is held that could be shown: what is held begins some stop string.
                    let held = &pushed[text.len()..];
                    prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held) && s != held));
                }
            }
            text.push_str(&matcher.finish());
            prop_assert_eq!((text, stopped_by), naive(&stops, &pieces.concat()));
        }
    }

    #[test]
    fn text_after_the_stop_is_dropped() {
        let mut matcher = StopMatcher::new(["END"]);
        assert_eq!(matcher.push("a END b").text, "a ");
        assert_eq!(matcher.push("more").text, "");
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn without_stops_nothing_is_held() {
        let mut matcher = StopMatcher::new(Vec::<String>::new());
        assert_eq!(matcher.push("anything").text, "anything");
        assert_eq!(matcher.finish(), "");
    }
}
