// Package coremock holds gomock mocks of the ports in core.
package coremock

//go:generate mockgen -source=../ports.go -package=coremock -destination=ports.go
