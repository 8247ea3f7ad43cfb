//! Watches, wake-ups, the queue, leadership.
