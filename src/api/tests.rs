mod decoding;
mod definitions;
mod field_table;
mod reasons;
