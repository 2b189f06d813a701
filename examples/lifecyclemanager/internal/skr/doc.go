// Package skr connects the operator to its runtimes, and writes there.
package skr
