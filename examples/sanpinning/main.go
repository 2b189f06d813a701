// Sanpinning is a listener that ends TLS, without a cluster. Each runtime can trigger only itself:
// 15 senders try to get an event accepted. The program prints each answer, and fails if an answer
// is not as expected.
//
// Start with listener.go, which contains the verifier. attempts.go contains the senders, and
// scene.go sends their events.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, verifier)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sanpinning:", err)
		os.Exit(1)
	}
}

const (
	title     = "Each runtime can trigger only itself: %d senders, their requests and the answers\n\n"
	rowFormat = "  %-34s %-17s %-14s %-16s %s\n"
)

// run makes all attempts, and prints a line about each. The error names all unexpected answers.
func run(ctx context.Context, out io.Writer, verify verifierFor) error {
	pki := newPKI()
	s, err := startScene(ctx, pki, pki.material, verify)
	if err != nil {
		return err
	}

	attempts := pki.attempts()
	fmt.Fprintf(out, title, len(attempts))
	fmt.Fprintf(out, rowFormat, "CERTIFICATE", "ASKS FOR", "ANSWER", "REASON", "TRIGGERED")

	var wrong []error
	for _, a := range attempts {
		want := outcome{status: a.status, reason: a.reason}
		if a.status >= 200 && a.status < 300 {
			want.triggered = a.runtime
		}

		got, err := s.playAttempt(ctx, a)
		if err == nil && got != want {
			err = fmt.Errorf("have %+v, want %+v", got, want)
		}

		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s, asking for %s: %w", a.sender.title, a.text(), err))
		}

		answer := "no connection"
		if got.status != 0 {
			answer = strconv.Itoa(got.status)
		}

		fmt.Fprintf(out, rowFormat,
			a.sender.title, a.text(), answer, cmp.Or(got.reason, "-"), cmp.Or(got.triggered, "-"))
	}

	if wrong == nil {
		fmt.Fprintf(out, "\nAll %d answers are as expected.\n", len(attempts))
	}

	return errors.Join(append(wrong, s.stop())...)
}
