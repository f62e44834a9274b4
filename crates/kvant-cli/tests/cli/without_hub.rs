//! A program that was built without downloads.

use crate::support::Home;

#[test]
fn names_of_models_that_are_not_here_say_that_this_build_cannot_fetch() {
    let home = Home::new();
    for arguments in [&["pull", "org/tiny"][..], &["run", "-m", "org/tiny", "hi"], &["run", "hi"]] {
        home.run(arguments).fails(1, &["this build of kvant cannot fetch models", "is not in"]);
    }
    assert!(home.run(&["models"]).ok().is_empty());
    assert!(!home.run(&["run", "-q", "-m", &home.model(), "-n", "2", "hi"]).ok().is_empty());
}
