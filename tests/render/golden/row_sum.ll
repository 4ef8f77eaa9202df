define void @row_sum_0(ptr %args, i64 %task, ptr %scratch) nounwind {
entry:
  %v3 = getelementptr ptr, ptr %args, i64 0
  %v4 = load ptr, ptr %v3, align 8
  %v5 = mul i64 %task, 64
  %v6 = getelementptr float, ptr %v4, i64 %v5
  br label %loop1
loop1:
  %k_2.16 = phi i64 [ 0, %entry ], [ %k_2.16.next, %loop1 ]
  %v1 = phi <8 x float> [ zeroinitializer, %entry ], [ %v9, %loop1 ]
  %v2 = phi <8 x float> [ zeroinitializer, %entry ], [ %v12, %loop1 ]
  %v7 = getelementptr float, ptr %v6, i64 %k_2.16
  %v8 = load <8 x float>, ptr %v7, align 4
  %v9 = fadd <8 x float> %v8, %v1
  %v10 = getelementptr float, ptr %v7, i64 8
  %v11 = load <8 x float>, ptr %v10, align 4
  %v12 = fadd <8 x float> %v11, %v2
  %k_2.16.sum = add i64 %k_2.16, 16
  %k_2.16.next = freeze i64 %k_2.16.sum
  %k_2.more = icmp ult i64 %k_2.16.next, 64
  br i1 %k_2.more, label %loop1, label %after2
after2:
  %v13 = fadd <8 x float> %v9, %v12
  %v14 = shufflevector <8 x float> %v13, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v15 = shufflevector <8 x float> %v13, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v16 = fadd <4 x float> %v14, %v15
  %v17 = shufflevector <4 x float> %v16, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v18 = shufflevector <4 x float> %v16, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v19 = fadd <2 x float> %v17, %v18
  %v20 = extractelement <2 x float> %v19, i64 0
  %v21 = extractelement <2 x float> %v19, i64 1
  %v22 = fadd float %v20, %v21
  %v23 = getelementptr ptr, ptr %args, i64 1
  %v24 = load ptr, ptr %v23, align 8
  %v25 = getelementptr float, ptr %v24, i64 %task
  store float %v22, ptr %v25, align 4
  ret void
}
