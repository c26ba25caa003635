//! Points at which crash tests make the process die. Without the feature
//! `failpoints` they are nothing, and the `fail` crate is not compiled.

#[cfg(feature = "failpoints")]
#[doc(hidden)]
pub use fail;

/// Aborts the process here, where the environment's `FAILPOINTS` names this point.
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        $crate::failpoint::fail::fail_point!($name, |_| ::std::process::abort())
    };
}

/// Aborts the process here, where the environment's `FAILPOINTS` names this point.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {};
}
