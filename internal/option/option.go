// Package option sets the defaults of options, and checks their values.
package option

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// WithDefaults returns options in which each field without a value has the value of defaults. It
// sets only exported fields, including the fields of nested structs.
func WithDefaults[O any](options, defaults O) O {
	fill(reflect.ValueOf(&options).Elem(), reflect.ValueOf(defaults))
	return options
}

func fill(options, defaults reflect.Value) {
	for i := range options.NumField() {
		field := options.Field(i)
		value := defaults.Field(i)

		switch {
		case !field.CanSet() || value.IsZero():
		case field.IsZero():
			field.Set(value)
		case field.Kind() == reflect.Struct:
			fill(field, value)
		}
	}
}

// IsNil reports whether a port is missing: nil, or a nil function or nil pointer with methods.
func IsNil(port any) bool {
	v := reflect.ValueOf(port)
	switch v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Func, reflect.Pointer:
		return v.IsNil()
	default:
		return false
	}
}

// Verifier refuses a verifier that is nil, and a core.Validator that fails. This package imports no
// other package of this repository, so it names the method.
func Verifier(verifier any) error {
	if IsNil(verifier) {
		return errors.New("verifier is nil: want SAN pinning, or another verifier")
	}
	if v, ok := verifier.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// Unless returns nil if ok, and otherwise an error with the formatted text.
func Unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// NotNegative refuses a negative value of the named option, and a time without a unit.
func NotNegative[T int | time.Duration](name string, value T) error {
	return notNegative(name, reflect.ValueOf(value))
}

func notNegative(name string, value reflect.Value) error {
	if d, isTime := reflect.TypeAssert[time.Duration](value); isTime && d > 0 && d < time.Millisecond {
		return fmt.Errorf("option has no unit: %s is %v, want at least 1ms, or 0 for the default", name, d)
	}

	isNegativeInt := value.CanInt() && value.Int() < 0
	isNegativeShare := value.CanFloat() && value.Float() < 0
	isNoNumber := value.CanFloat() && math.IsNaN(value.Float())
	if isNegativeInt || isNegativeShare || isNoNumber {
		return fmt.Errorf("option is negative: %s is %v, want more than 0, or 0 for the default", name, value)
	}

	return nil
}

// NoneNegative refuses negative values of all numbers and times among options, and times without a
// unit, in the order of their fields.
func NoneNegative(options any) error {
	var problems []error
	v := reflect.ValueOf(options)
	name, _, _ := strings.Cut(v.Type().Name(), "[") // without the types of its parameters
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.IsExported() {
			problems = append(problems, notNegative(name+"."+field.Name, v.Field(i)))
		}
	}

	return errors.Join(problems...)
}

// longestName bounds the name of a runtime, in bytes: the length of a SPIFFE ID (SPIFFE-ID, section
// 2.3).
const longestName = 2048

// RuntimeName refuses names of runtimes that are blank, would forge a line of a log, or would make
// a scrape of metrics fail. All transports share it.
func RuntimeName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return errors.New("the name of the runtime is empty")
	case len(name) > longestName:
		return fmt.Errorf("the name of the runtime has %d bytes, want at most %d", len(name), longestName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, notPrintable):
		return errors.New("the name of the runtime has characters that cannot be printed")
	default:
		return nil
	}
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }
