// Package coremock provides gomock mocks of the ports in core.
package coremock

//go:generate mockgen -write_package_comment=false -source=../ports.go -package=coremock -destination=zz_generated.go
