// Package option checks the values of options.
package option

import (
	"errors"
	"fmt"
	"time"
)

var errNegative = errors.New("option is negative")

// NotNegative refuses a negative value of the option with that name.
func NotNegative[T int | float64 | time.Duration](name string, value T) error {
	if value >= 0 {
		return nil
	}
	return fmt.Errorf("%w: %s is %v, want more than 0, or 0 for the default", errNegative, name, value)
}
