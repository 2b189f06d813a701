package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const title = "Each runtime can trigger only itself: %d senders, their requests and the answers\n\n"

const rowFormat = "  %-34s %-17s %-14s %-16s %s\n"

// report makes each attempt and prints a line about it. The error names all unexpected answers.
func report(ctx context.Context, out io.Writer, s *scene, attempts []attempt) error {
	fmt.Fprintf(out, title, len(attempts))
	fmt.Fprintf(out, rowFormat, "CERTIFICATE", "ASKS FOR", "ANSWER", "REASON", "TRIGGERED")
	var wrong []error
	for i := range attempts {
		a := &attempts[i]
		got, err := s.play(ctx, a)
		if err == nil && got != a.want {
			err = fmt.Errorf("have %+v, want %+v", got, a.want)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s, asking for %s: %w", a.sender, a.asks, err))
		}
		fmt.Fprintf(out, rowFormat, a.sender, a.asks, answer(got), orNone(got.reason), orNone(string(got.triggered)))
	}
	if wrong == nil {
		fmt.Fprintf(out, "\nAll %d answers are as expected.\n", len(attempts))
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
