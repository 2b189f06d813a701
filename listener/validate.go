package listener

import (
	"errors"
	"fmt"
	"time"
)

// validator is implemented by the parts of a listener that have options or parts of their own.
// [New] validates them.
type validator interface{ validate() error }

func validate(part any) error {
	if v, ok := part.(validator); ok {
		return v.validate()
	}
	return nil
}

var errNegative = errors.New("option is negative")

// notNegative refuses a negative value of the option with that name.
func notNegative[T int | float64 | time.Duration](name string, value T) error {
	if value >= 0 {
		return nil
	}
	return fmt.Errorf("%w: %s is %v, want more than 0, or 0 for the default", errNegative, name, value)
}
