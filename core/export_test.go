package core

// ParseOwner parses the value of [OwnerAnnotation].
var ParseOwner = parseOwner
