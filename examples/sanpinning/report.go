package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const rowFormat = "  %-34s %-17s %-14s %-16s %s\n"

// report prints one line for each attempt. The error names all that were not answered as they should be.
func report(ctx context.Context, out io.Writer, s *scene, attempts []attempt) error {
	fmt.Fprintln(out, "Only a runtime can trigger itself: who asks the listener for what, and what comes of it")
	fmt.Fprintln(out)
	fmt.Fprintf(out, rowFormat, "CERTIFICATE SAYS", "ASKS FOR", "ANSWER", "REASON", "TRIGGERED")

	var wrong []error

	for i := range attempts {
		a := &attempts[i]

		got, err := s.play(ctx, a)
		if err == nil && got != a.want {
			err = fmt.Errorf("have %+v, want %+v", got, a.want)
		}

		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s, asking for %s: %w", a.who, a.asks, err))
		}

		fmt.Fprintf(out, rowFormat, a.who, a.asks, answer(got), orNone(got.reason), orNone(string(got.triggered)))
	}

	if wrong == nil {
		fmt.Fprintf(out, "\nAll %d as it should be.\n", len(attempts))
	}

	return errors.Join(wrong...)
}

func answer(o outcome) string {
	if o.status == 0 {
		return "no connection"
	}

	return strconv.Itoa(o.status)
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}

	return text
}
