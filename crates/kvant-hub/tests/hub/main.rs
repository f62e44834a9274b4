//! Pulling models, against a server on the loopback interface and a stand-in for pip.

mod fetch;
mod hostile;
mod http_double;
#[cfg(unix)] // the stand-in is a shell script
mod known;
