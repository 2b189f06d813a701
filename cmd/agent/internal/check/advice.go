package check

import (
	"errors"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

type advice struct {
	is           func(error) bool
	want, action string
}

func first(known []advice, err error) advice {
	return known[slices.IndexFunc(known, func(a advice) bool { return a.is(err) })]
}

func isAny(error) bool { return true }

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

func is(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }

func because(reason core.Reason) func(error) bool {
	return func(err error) bool { return core.ReasonOf(err) == reason }
}

func forbidden(answer string) func(error) bool {
	type answered interface {
		error
		Answer() string
	}
	return func(err error) bool {
		refused, ok := errors.AsType[answered](err)
		return core.ReasonOf(err) == reasons.Forbidden && ok && strings.HasPrefix(refused.Answer(), answer)
	}
}

func isStatus(code int) func(error) bool {
	type statusError interface {
		error
		StatusCode() int
	}
	return func(err error) bool {
		answer, ok := errors.AsType[statusError](err)
		return ok && answer.StatusCode() == code
	}
}
