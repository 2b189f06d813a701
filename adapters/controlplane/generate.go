package controlplane

//go:generate controller-gen object crd:crdVersions=v1,maxDescLen=400 paths=./api/... output:crd:dir=config/crd
