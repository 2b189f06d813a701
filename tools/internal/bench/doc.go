// Package bench compares the results of go test -bench with a stored baseline, in the format that
// benchstat reads.
package bench
