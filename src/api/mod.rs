//! Wire types of the `stages.metio.wtf` group and of the Flux sources we read. Imports nothing of ours.
