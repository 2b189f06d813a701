// Package tools has checks of the repository that no linter makes. The commands are below cmd.
package tools
