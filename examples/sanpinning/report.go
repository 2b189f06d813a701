package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	titleSenders  = "Each runtime can trigger only itself: %d senders, their requests and the answers\n\n"
	titleReplicas = "\nEvery replica listens, and the leader takes events\n\n"
)

const rowFormat = "  %-34s %-17s %-14s %-16s %s\n"

// report makes each attempt and prints a line about it. The error names all unexpected answers.
func report(ctx context.Context, out io.Writer, s *scene, leader *replica, attempts []attempt) error {
	fmt.Fprintf(out, titleSenders, len(attempts))
	fmt.Fprintf(out, rowFormat, "CERTIFICATE", "ASKS FOR", "ANSWER", "REASON", "TRIGGERED")
	var wrong []error
	for i := range attempts {
		a := &attempts[i]
		a.want.by = leader.name
		if a.want.triggered == "" {
			a.want.by = ""
		}
		got, err := s.compare(ctx, leader, a)
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

// reportReplica sends an event that would be accepted, and prints a line about it.
func reportReplica(ctx context.Context, out io.Writer, s *scene, situation string, to *replica, a attempt) error {
	got, err := s.compare(ctx, to, &a)
	fmt.Fprintf(out, rowFormat, situation, to.name, answer(got), orNone(got.reason), orNone(got.by))
	if err != nil {
		return fmt.Errorf("%s, asking %s: %w", situation, to.name, err)
	}
	return nil
}

// compare makes an attempt. It fails on an unexpected outcome.
func (s *scene) compare(ctx context.Context, to *replica, a *attempt) (outcome, error) {
	got, err := s.play(ctx, to, a)
	if err == nil && got != a.want {
		err = fmt.Errorf("have %+v, want %+v", got, a.want)
	}
	return got, err
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
