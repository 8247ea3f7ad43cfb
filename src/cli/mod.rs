//! The `stagesetctl` commands.
