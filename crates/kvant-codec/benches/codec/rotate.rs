pub fn run(_: &crate::Options) {}
